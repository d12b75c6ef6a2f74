"""Requests that break the CNI specification are refused with its codes before anything is done."""

import pytest

from netmgr.config import Backend
from netmgr.lab.topology import cluster
from tests.kernel.conforming import ALLOWED, CASES, VERSIONS, config, one_node, valid
from tests.unit import cni_shapes

pytestmark = pytest.mark.root

REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
}
MALFORMED = {
    "CNI_CONTAINERID": ("-c1", "a/b", "a b", "\u00e4"),
    "CNI_IFNAME": ("0123456789abcdef", ".", "..", "a/b", "a:b", "a b"),
    "CNI_NETNS": ("relative/path",),
    "CNI_PATH": (),
}
BAD_STDIN = {
    6: (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000),
    7: (
        config("1.1.0", name=...),
        config("1.1.0", name="a b"),
        config("1.1.0", name=7),
        config("1.1.0", type=...),
        config("1.1.0", name="another-network"),
    ),
    1: (config(...), config("0.2.0"), config("2.0.0")),
}


@pytest.fixture(scope="module")
def cni():
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES) as caller:
        yield caller


@pytest.fixture(autouse=True)
def standing(cni):
    """A pod that must come through every bad request unharmed."""
    with cni.sandbox() as pod:
        result = cni.call("ADD", pod).body
        yield pod
        assert cni.call("CHECK", pod, keys={"prevResult": result}).exit_code == 0
        assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}


def keys_of(command):
    """What a verb wants in its configuration beside the common keys."""
    return {"CHECK": {"prevResult": {}}, "GC": valid()}.get(command, {})


def refused(answer, code, version="1.1.0"):
    assert answer.exit_code == 1
    cni_shapes.error(answer.body)
    assert (answer.body["code"], answer.body["cniVersion"]) == (code, version)
    return answer.body["msg"]


@pytest.mark.parametrize("absent", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize(("command", "version"), CASES)
def test_each_required_variable_is_missed_by_name(cni, standing, command, version, absent):
    for name in REQUIRED[command]:
        answer = cni.call(command, standing, version, keys_of(command), **{name: absent})
        assert name in refused(answer, 4, version)


@pytest.mark.parametrize(("command", "version"), CASES)
def test_each_malformed_variable_is_refused_by_name(cni, standing, command, version):
    for name in REQUIRED[command]:
        for value in MALFORMED[name]:
            answer = cni.call(command, standing, version, keys_of(command), **{name: value})
            assert name in refused(answer, 4, version)


@pytest.mark.parametrize("command", [None, "", "add", "UPDATE"])
def test_an_unknown_verb_is_refused(cni, standing, command):
    assert "CNI_COMMAND" in refused(cni.call("ADD", standing, CNI_COMMAND=command), 4, "1.0.0")


@pytest.mark.parametrize(
    ("command", "version"), [(verb, each) for verb in ALLOWED for each in VERSIONS if each not in ALLOWED[verb]]
)
def test_a_verb_is_refused_in_versions_older_than_it(cni, standing, command, version):
    assert command in refused(cni.call(command, standing, version, keys_of(command)), 1, version)


@pytest.mark.parametrize("command", ALLOWED)
@pytest.mark.parametrize("code", BAD_STDIN)
def test_a_bad_configuration_is_refused(cni, standing, command, code):
    for stdin in BAD_STDIN[code]:
        answer = cni.execute(cni.variables(command, standing), stdin)
        assert answer.exit_code == 1
        cni_shapes.error(answer.body)
        assert answer.body["code"] == code
