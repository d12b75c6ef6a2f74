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


def mapping(shape):
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


DNS = {"nameservers?": array(address), "domain?": text, "search?": array(text)}
INTERFACE = {"name": name, "mac?": mac, "sandbox?": text}
INTERFACE_1_1 = INTERFACE | {"mtu?": unsigned, "socketPath?": text, "pciID?": text}
IP = {"address": cidr_address, "gateway?": address, "interface?": unsigned}
ROUTE = {"dst": destination, "gw?": address}
ROUTE_1_1 = ROUTE | {"scope?": one_of(0, 253, 254)}
ROUTE_1_1 |= dict.fromkeys(("mtu?", "advmss?", "priority?", "table?"), unsigned)

SUCCESS = {
    version: mapping(
        {
            "cniVersion": one_of(version),
            "interfaces?": array(mapping(INTERFACE_1_1 if version == "1.1.0" else INTERFACE)),
            "ips?": array(mapping(IP if version >= "1." else IP | {"version": one_of("4", "6")})),
            "routes?": array(mapping(ROUTE_1_1 if version == "1.1.0" else ROUTE)),
            "dns?": mapping(DNS | {"options?": array(text)}),
        }
    )
    for version in ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}
VERSIONS = mapping({"cniVersion": name, "supportedVersions": array(name)})
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
    mapping({"cniVersion": name, "code": unsigned, "msg": name, "details?": text})(result)
    assert result["code"] in RESERVED_CODES or result["code"] >= 100, (
        f"code {result['code']} is nobody's"
    )
