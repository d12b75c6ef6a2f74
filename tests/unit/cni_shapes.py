"""The shapes of CNI answers, written down from the specifications 0.3.0 to 1.1.0 ("Result" and
"Result Types").

Nothing here is taken from the code under test: a shape is a mapping from key to a check, a
key that ends in "?" may be missing, and any other key is refused.
"""

import ipaddress
import re

MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def text(value):
    assert isinstance(value, str), f"{value!r} is no string"


def name(value):
    text(value)
    assert value, "an empty name"


def mac(value):
    text(value)
    assert MAC.fullmatch(value), f"{value!r} is no hardware address"


def unsigned(value):
    assert type(value) is int, f"{value!r} is no integer"
    assert value >= 0, f"{value!r} is negative"


def address(value):
    text(value)
    ipaddress.ip_address(value)


def cidr_address(value):
    assert "/" in value, f"{value!r} has no prefix length"
    ipaddress.ip_interface(value)


def destination(value):
    assert "/" in value, f"{value!r} has no prefix length"
    ipaddress.ip_network(value)


def one_of(*choices):
    def check(value):
        assert value in choices, f"{value!r} is none of {choices}"

    return check


def array(item):
    def check(value):
        assert isinstance(value, list), f"{value!r} is no array"
        for entry in value:
            item(entry)

    return check


def mapping(**shape):
    def check(value):
        assert isinstance(value, dict), f"{value!r} is no object"
        for key, key_check in shape.items():
            if key.rstrip("?") in value:
                key_check(value[key.rstrip("?")])
            else:
                assert key.endswith("?"), f"{key} is missing in {value}"
        unknown = set(value) - {key.rstrip("?") for key in shape}
        assert not unknown, f"{sorted(unknown)} is not in the specification"

    return check


DNS = mapping(
    **{
        "nameservers?": array(address),
        "domain?": text,
        "search?": array(text),
        "options?": array(text),
    }
)
ROUTES_OLD = array(mapping(**{"dst": destination, "gw?": address}))
ROUTES_1_1 = array(
    mapping(
        **{
            "dst": destination,
            "gw?": address,
            "mtu?": unsigned,
            "advmss?": unsigned,
            "priority?": unsigned,
            "table?": unsigned,
            "scope?": one_of(0, 253, 254),
        }
    )
)
INTERFACES_OLD = array(mapping(**{"name": name, "mac?": mac, "sandbox?": text}))
INTERFACES_1_1 = array(
    mapping(
        **{
            "name": name,
            "mac?": mac,
            "mtu?": unsigned,
            "sandbox?": text,
            "socketPath?": text,
            "pciID?": text,
        }
    )
)
IPS_OLD = array(
    mapping(
        **{
            "version": one_of("4", "6"),
            "address": cidr_address,
            "gateway?": address,
            "interface?": unsigned,
        }
    )
)
IPS = array(mapping(**{"address": cidr_address, "gateway?": address, "interface?": unsigned}))

SUCCESS = {
    version: mapping(
        **{
            "cniVersion": one_of(version),
            "interfaces?": INTERFACES_1_1 if version == "1.1.0" else INTERFACES_OLD,
            "ips?": IPS if version.startswith("1.") else IPS_OLD,
            "routes?": ROUTES_1_1 if version == "1.1.0" else ROUTES_OLD,
            "dns?": DNS,
        }
    )
    for version in ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}
VERSIONS = mapping(cniVersion=name, supportedVersions=array(name))
RESERVED_CODES = (1, 2, 3, 4, 5, 6, 7, 11, 50, 51)


def success(result, version):
    """Check a result of ADD: its shape, and that what refers to something refers to something
    there.
    """
    SUCCESS[version](result)
    for entry in result.get("ips", []):
        assert entry.get("interface", 0) < len(result["interfaces"]), (
            f"{entry} refers to no interface"
        )
        if "version" in entry:
            assert ipaddress.ip_interface(entry["address"]).version == int(entry["version"])


def error(result):
    """Check an error: every key, and a code that is the specification's or free for plugins to
    use."""
    mapping(**{"cniVersion": name, "code": unsigned, "msg": name, "details?": text})(result)
    assert result["code"] in RESERVED_CODES or result["code"] >= 100, (
        f"code {result['code']} is nobody's"
    )
