"""CNI_ARGS: whose an attachment is, and what is no argument."""

import pytest

from cni.request import parse_request, pod_ref
from netmgr.errors import InvalidEnvironment
from netmgr.model import PodRef
from tests.unit.test_cni_request import ARGUMENTS, config, variables


def test_a_mac_may_come_with_the_arguments_of_an_add():
    given = variables("ADD", CNI_ARGS="MAC=c2:11:22:33:44:55")
    assert parse_request(given, config()).requested.mac == bytes.fromhex("c21122334455")


def test_pod_is_named_by_arguments_in_any_order():
    backwards = ";".join(reversed(ARGUMENTS.split(";")))
    for text in (ARGUMENTS, backwards, ARGUMENTS + ";OTHER=x"):
        request = parse_request(variables("ADD", CNI_ARGS=text), config())
        assert pod_ref(request) == PodRef("train", "worker-0", "u-1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, PodRef("-", "c0ffee_1.2-3")),
        ("IgnoreUnknown=true;K8S_POD_NAME=web", PodRef("-", "web")),
        ("K8S_POD_NAMESPACE=;K8S_POD_NAME=;K8S_POD_UID=", PodRef("-", "c0ffee_1.2-3")),
    ],
)
def test_a_runtime_outside_kubernetes_leaves_the_container_id_as_name(arguments, expected):
    assert pod_ref(parse_request(variables("ADD", CNI_ARGS=arguments), config())) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        "K8S_POD_NAME",
        "=x",
        "K8S_POD_NAME=a;",
        "K8S_POD_NAME=a=b",
        "OTHER=x",
        "IgnoreUnknown=0;OTHER=x",
        "IgnoreUnknown=perhaps",
        "K8S_POD_NAME=a b",
        'K8S_POD_NAMESPACE=a"b',
        "K8S_POD_UID=../x",
        "K8S_POD_NAME=" + "a" * 254,
    ],
)
def test_malformed_arguments_stop_an_add_but_never_a_del(arguments):
    for verb in ("ADD", "CHECK"):
        with pytest.raises(InvalidEnvironment, match=r"^CNI_ARGS: "):
            parse_request(variables(verb, CNI_ARGS=arguments), config(verb))
    assert parse_request(variables("DEL", CNI_ARGS=arguments), config("DEL")).args == {}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("B=1;A=2", "unknown keys A, B without IgnoreUnknown=1"),
        ("IgnoreUnknown=perhaps", "IgnoreUnknown must be 1, true, 0 or false"),
        ("K8S_POD_NAME=a=b", "'K8S_POD_NAME=a=b' is not KEY=VALUE"),
        ("K8S_POD_NAME=a b", "K8S_POD_NAME 'a b' is not a name of Kubernetes"),
    ],
)
def test_malformed_arguments_are_named(arguments, fault):
    with pytest.raises(InvalidEnvironment, match=f"^CNI_ARGS: {fault}$"):
        parse_request(variables("ADD", CNI_ARGS=arguments), config())


def test_a_name_may_have_as_many_characters_as_kubernetes_allows():
    name = "a" * 253
    assert parse_request(variables("ADD", CNI_ARGS=f"K8S_POD_NAME={name}"), config()).args == {
        "K8S_POD_NAME": name
    }
