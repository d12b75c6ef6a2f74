"""The bytes between launcher and agent."""

from __future__ import annotations

import re

import pytest

from cni.wire import STARTED, decode_request, encode_reply, encode_request, is_of_another_version
from netmgr.agent.cni import _started_at
from netmgr.errors import IoFailure

VARIABLES = {"CNI_COMMAND": "ADD", "CNI_ARGS": "A=1;B=2", "NETMGR_STARTED": "7"}


def test_a_request_is_a_greeting_variables_and_standard_input_with_a_nul_after_each() -> None:
    message = encode_request(VARIABLES | {"PATH": "/bin"}, b'{"a": 1}')
    variables = b"CNI_COMMAND=ADD\0CNI_ARGS=A=1;B=2\0NETMGR_STARTED=7\0"
    assert message == b"netmgr-cni 1\0" + variables + b'\0{"a": 1}'
    assert decode_request(message) == (VARIABLES, b'{"a": 1}')


def test_bytes_that_are_no_text_survive_in_variables_and_nul_in_standard_input() -> None:
    environment = {"CNI_IFNAME": "eth\udcff"}
    message = encode_request(environment, b"\0a\0\0")
    assert b"CNI_IFNAME=eth\xff\0" in message
    assert decode_request(message) == (environment, b"\0a\0\0")


@pytest.mark.parametrize("message", [b"", b"netmgr-cni 2\0\0", b"GET / HTTP/1.1"])
def test_another_greeting_is_refused_with_both(message: bytes) -> None:
    greeting = re.escape(repr(message.split(b"\0")[0]))
    fault = (
        f"^the launcher speaks {greeting}, this agent b'netmgr-cni 1': install the launcher again$"
    )
    with pytest.raises(IoFailure, match=fault):
        decode_request(message)


def test_a_truncated_request_is_refused() -> None:
    message = encode_request(VARIABLES, b"")
    assert decode_request(message) == (VARIABLES, b"")
    for length in range(len("netmgr-cni 1"), len(message)):
        with pytest.raises(IoFailure, match=r"^the launcher's request ended before its variables"):
            decode_request(message[:length])


def test_a_launcher_of_another_version_is_told_from_a_truncated_request() -> None:
    assert is_of_another_version(b"netmgr-cni 2\0rest")
    whole, cut = b"netmgr-cni 1\0rest", b"netmgr-cni 1\0CNI_COMMAND=ADD\0"
    for message in (whole, cut, b"netmgr-cni 2", b"other 2\0rest"):
        assert not is_of_another_version(message)


def test_a_reply_is_the_exit_code_and_what_the_launcher_prints() -> None:
    assert encode_reply(0, b"{}\n") == b"0\n{}\n"
    assert encode_reply(11, b"") == b"11\n"


def test_of_a_variable_that_comes_twice_the_first_one_counts_as_for_getenv() -> None:
    frame = b"netmgr-cni 1\0CNI_IFNAME=eth0\0CNI_IFNAME=eth1\0\0{}"
    assert decode_request(frame) == ({"CNI_IFNAME": "eth0"}, b"{}")


@pytest.mark.parametrize("text", ["9" * 20, "9" * 400, "9" * 5000, "", "-1", "1e3", "²"])
def test_a_start_that_is_no_time_of_a_launcher_counts_as_now(text: str) -> None:
    before = _started_at({})
    assert before <= _started_at({STARTED: text}) <= _started_at({})


def test_a_start_is_in_seconds_since_boot_and_never_ahead() -> None:
    assert _started_at({STARTED: "1500000000"}) == 1.5
    assert _started_at({STARTED: "9" * 19}) <= _started_at({})
