"""A CNI request from its bytes to its answer."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from cni.spec import Request, Verb, error_result, parse_request, version_of, version_result
from cni.wire import STARTED, decode_request, encode_reply
from netmgr.agent.node import Node
from netmgr.agent.telemetry import Telemetry
from netmgr.agent.verbs.add import add
from netmgr.agent.verbs.check import check
from netmgr.agent.verbs.delete import delete
from netmgr.agent.verbs.gc import collect_garbage
from netmgr.agent.verbs.status import status
from netmgr.errors import InvalidNetworkConfig, NetmgrError

_VERBS = frozenset(Verb)

log = logging.getLogger(__name__)


class CniService:
    """Answers what the launcher sends."""

    def __init__(self, node: Node, telemetry: Telemetry) -> None:
        self._node = node
        self._telemetry = telemetry

    def answer(self, message: bytes) -> bytes:
        """The reply to one request; errors become CNI error objects."""
        code, output = self.serve(message)
        return encode_reply(1 if code else 0, output)

    def serve(self, message: bytes) -> tuple[int, bytes]:
        """Carry out one request: its CNI error code (0 for success) and what the launcher prints."""
        begin = time.monotonic()
        environment: Mapping[str, str] = {}
        stdin, code, output = b"", NetmgrError.cni_code, b""
        with self._telemetry.under_way():
            try:
                environment, stdin = decode_request(message)
                request = parse_request(environment, stdin)
                result = self._carry_out(request, _started_at(environment))
                code, output = 0, json.dumps(result).encode() if result else b""
            except NetmgrError as error:
                code, output = error.cni_code, json.dumps(error_result(version_of(stdin), error)).encode()
                shown = _summary(environment, code, begin)
                log.warning("request verb=%s container=%s ifname=%s code=%d ms=%.1f message=%s", *shown, error.message)
            else:
                shown = _summary(environment, code, begin)
                log.info("request verb=%s container=%s ifname=%s code=%d ms=%.1f", *shown)
            finally:
                command = environment.get("CNI_COMMAND", "")
                self._telemetry.answered(command if command in _VERBS else "invalid", code, time.monotonic() - begin)
        return code, output

    def _carry_out(self, request: Request, started_at: float) -> dict[str, object] | None:
        if request.command is Verb.VERSION:
            return version_result(request.version)
        if request.network != self._node.network and request.command is not Verb.DEL:
            raise InvalidNetworkConfig(
                f"name: this node's agent serves {self._node.network!r}, not {request.network!r}"
            )
        match request.command:
            case Verb.ADD:
                return add(self._node, request, started_at)
            case Verb.DEL:
                delete(self._node, request, started_at)
            case Verb.CHECK:
                check(self._node, request)
            case Verb.GC:
                collect_garbage(self._node, request)
            case Verb.STATUS:
                status(self._node, self._telemetry)
        return None


def _started_at(environment: Mapping[str, str]) -> float:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    text = environment.get(STARTED, "")
    # A spooled request may come from an earlier boot, whose clock had gone further than ours.
    return min(now, int(text) / 1e9) if text.isascii() and text.isdigit() else now


def _summary(environment: Mapping[str, str], code: int, begin: float) -> tuple[str, str, str, int, float]:
    """Verb, container, interface, CNI error code and milliseconds of a request."""
    command, container = _shown(environment, "CNI_COMMAND", 12), _shown(environment, "CNI_CONTAINERID", 80)
    return command, container, _shown(environment, "CNI_IFNAME", 16), code, (time.monotonic() - begin) * 1000


def _shown(environment: Mapping[str, str], name: str, longest: int) -> str:
    """A variable as a log line takes it: one word, whatever it holds."""
    value = environment.get(name, "-")[:longest]
    return value if value and all("!" <= character <= "~" for character in value) else ascii(value)
