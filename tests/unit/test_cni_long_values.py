"""A value that makes no sense is quoted in the error, but no more of it than its beginning."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cni.request import check_wait, parse_args, parse_request
from cni.results import parse_previous
from cni.runtime_config import parse_runtime_config
from cni.wire import decode_request
from netmgr.errors import NetmgrError

ADD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/pod",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}


def added(**changes: object) -> None:
    config = {"cniVersion": "1.1.0", "name": "net", "type": "netmgr", **changes}
    parse_request(ADD, json.dumps(config).encode())


@pytest.mark.parametrize(
    ("read", "quoted"),
    [
        (
            lambda: parse_previous({"ips": [{"address": f"10.0.0.1/{'9' * 99}"}]}),
            f"prevResult.ips.address: '{'9' * 20}' is",
        ),
        (
            lambda: parse_runtime_config({"runtimeConfig": {"mac": "x" * 99}}, {}),
            f"runtimeConfig.mac: '{'x' * 40}' is",
        ),
        (lambda: decode_request(b"x" * 99 + b"\0"), f"speaks b'{'x' * 32}', this"),
        (lambda: added(name="!" * 99), f"name: '{'!' * 79}, must"),
        (lambda: added(cniVersion="9" * 99), f"cniVersion '{'9' * 20}' is"),
        (lambda: check_wait("9" * 99), f"wait: '{'9' * 40}', must"),
        (lambda: parse_args(f"K8S_POD_NAME={'!' * 99}"), f"K8S_POD_NAME '{'!' * 80}' is"),
        (lambda: parse_args("x" * 99), f"CNI_ARGS: '{'x' * 80}' is"),
    ],
    ids=["prefix length", "mac", "greeting", "name", "version", "wait", "pod", "pair"],
)
def test_only_the_beginning_is_quoted(read: Callable[[], object], quoted: str) -> None:
    with pytest.raises(NetmgrError) as caught:
        read()
    assert quoted in str(caught.value)
