"""What runtimes, launchers and libcni hand over: requests, frames, kept DELs, cached results."""

from __future__ import annotations

import io
import json
import logging
from types import SimpleNamespace

from cni import wire
from cni.request import Request, Verb, parse_request
from cni.results import SUPPORTED_VERSIONS, Wiring, add_result
from netmgr.agent.cni import spool
from netmgr.agent.cni.server import CniSocket
from netmgr.errors import IoFailure, NetmgrError, RequestError
from netmgr.logs import JsonFormatter, TextFormatter
from netmgr.observer import cached_results
from netmgr.prefixes import Address, Family
from tests.fuzz.mutation import Shape
from tests.fuzz.target import file_of, target

TOKENS = """
CNI_COMMAND=ADD CNI_COMMAND=DEL CNI_COMMAND=CHECK CNI_COMMAND=GC CNI_COMMAND=STATUS
CNI_COMMAND=VERSION CNI_CONTAINERID= CNI_NETNS= CNI_IFNAME= CNI_ARGS= CNI_PATH=
CNI_NETNS_OVERRIDE= NETMGR_STARTED= IgnoreUnknown=1 K8S_POD_NAMESPACE= K8S_POD_NAME=
K8S_POD_UID= K8S_POD_INFRA_CONTAINER_ID= IP= MAC= eth0 default all netmgr cniVersion 0.3.0 0.3.1
0.4.0 1.0.0 1.1.0 name type prevResult interfaces ips routes dns address gateway interface dst
gw mtu sandbox socketPath pciID table priority scope runtimeConfig capabilities mac bandwidth
ingressRate egressRate io.kubernetes.cri.pod-annotations netmgr.io/internet-egress-bandwidth
args cni ipam ipMasq wait cni.dev/valid-attachments cni.dev/attachments containerID ifname
servers searches options 10M 64k 1Ti containerId ifName networkName cniArgs capabilityArgs
result kind cniCacheV1 ip4 ip6 ip
"""
WIRING = Wiring(
    *("nm0", "02:00:00:00:00:01", 1500, "eth0", "02:00:00:00:00:02", 1400, "/run/netns/a"),
    addresses=(Address.parse("10.0.0.1"), Address.parse("2001:db8::1")),
    gateways={Family.V4: Address.parse("169.254.1.1"), Family.V6: Address.parse("fe80::1")},
)


@target(Shape.WIRE, rounds=4000, tokens=TOKENS)
def request(data: bytes) -> None:
    """A request is refused by a `RequestError`, or has what its verb needs, and can be answered."""
    try:
        found = parse_request(*wire.decode_request(data))
    except RequestError as error:
        assert error.message
        return
    _is_complete(found)
    if found.command is Verb.ADD:
        previous = found.previous.document if found.previous else None
        json.dumps(add_result(found.version, WIRING, found.dns, previous))


def _is_complete(found: Request) -> None:
    assert found.version in SUPPORTED_VERSIONS
    if found.command in (Verb.ADD, Verb.CHECK, Verb.DEL):
        assert found.container_id
        assert 0 < len(found.ifname.encode()) <= 15
        assert not {"/", "\0", "%"} & {*found.container_id, *found.ifname}
        pod = found.pod
        assert f"{pod.namespace}{pod.name}".encode()
    if found.command in (Verb.ADD, Verb.CHECK):
        assert found.netns.startswith("/")
    for address in found.runtime.requested.addresses:
        assert Address.parse(str(address)) == address
    assert found.runtime.requested.mac == b"" or len(found.runtime.requested.mac) == 6
    if found.previous:
        for address, length, index in found.previous.addresses:
            assert 0 <= length <= address.family.width
            assert index is None or 0 <= index < len(found.previous.interfaces)


@target(Shape.WIRE, rounds=4000, tokens=TOKENS)
def wire_request(data: bytes) -> None:
    """A frame is refused by `IoFailure`, or comes back from encoding what was decoded from it."""
    try:
        environment, stdin = wire.decode_request(data)
    except IoFailure:
        return
    assert not wire.is_of_another_version(data)
    again = wire.decode_request(wire.encode_request(environment, stdin))
    known = {name: value for name, value in environment.items() if _is_sent(name)}
    assert again == (known, stdin)


def _is_sent(name: str) -> bool:
    return name.startswith("CNI_") or name == wire.STARTED


class _Answering(CniSocket):
    """The socket's way from bytes to answer, with a node that carries out nothing."""

    def __init__(self) -> None:
        self.answered: list[tuple[str, int]] = []
        self._requests = SimpleNamespace(
            answered=lambda verb, code, _: self.answered.append((verb, code))
        )

    def _carry_out(self, request: Request, started_at: float) -> dict[str, object] | None:
        assert started_at >= 0
        return {"cniVersion": request.version} if request.command is Verb.ADD else None


@target(Shape.WIRE, rounds=1200, tokens=TOKENS)
def answer(data: bytes) -> None:
    """Every request has an answer, a CNI error or result, and one log line of either format."""
    lines = io.StringIO()
    log = logging.getLogger("netmgr.agent.cni.server")
    handlers = [_handler(lines, TextFormatter()), _handler(lines, JsonFormatter())]
    former, log.handlers, log.propagate = log.level, handlers, False
    log.setLevel(logging.INFO)
    try:
        socket = _Answering()
        code, _, output = socket.answer(data).partition(b"\n")
    finally:
        log.handlers, log.propagate = [], True
        log.setLevel(former)
    assert lines.getvalue().count("\n") == len(handlers), "not one line a request"
    assert not {*"\x1b\x07\x9b"} & {*lines.getvalue()}, "a log line that a terminal obeys"
    json.loads(lines.getvalue().splitlines()[-1])
    ((verb, number),) = socket.answered
    assert verb in {*Verb, "invalid"}
    if code == b"0":
        assert number == 0
        assert not output or json.loads(output)["cniVersion"] in SUPPORTED_VERSIONS
    else:
        error = json.loads(output)
        assert (code, error["code"]) == (b"1", number)
        assert error["msg"]
        assert error["cniVersion"] in SUPPORTED_VERSIONS


def _handler(stream: io.StringIO, formatter: logging.Formatter) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.handleError = _raise
    handler.setFormatter(formatter)
    return handler


def _raise(_record: logging.LogRecord) -> None:
    raise  # noqa: PLE0704  of the handler's own except


@target(Shape.WIRE, rounds=500, tokens=TOKENS)
def kept_del(data: bytes) -> None:
    """A kept DEL is carried out and removed, set aside for good, or stays as it is: never half."""
    with file_of(data, "0123456789abcdef.del") as path:
        carried_out: list[Request] = []
        spool.replay([path.parent], lambda message: _carry_out(message, carried_out))
        (left,) = [*path.parent.iterdir()] or [None]
        if carried_out:
            assert left is None
        elif wire.is_of_another_version(data):
            assert left == path
        else:
            assert left == path.with_name(path.name + spool.REFUSED)
        assert left is None or left.read_bytes() == data


def _carry_out(message: bytes, carried_out: list[Request]) -> int:
    try:
        carried_out.append(parse_request(*wire.decode_request(message)))
    except NetmgrError as error:
        return error.cni_code
    return 0


@target(Shape.JSON, rounds=4000, tokens=TOKENS)
def cached_result(data: bytes) -> None:
    """A file of libcni's cache is `Unusable` with a reason, or names a pod that labels can hold."""
    try:
        found = cached_results.parse(data, 1.0)
    except cached_results.UnusableFile as fault:
        assert fault.reason in cached_results.IgnoreReason
        return
    assert found.addresses
    names = (
        found.key.container_id,
        found.key.ifname,
        found.pod.namespace,
        found.pod.name,
        found.pod.uid,
    )
    for text in names:
        assert len(text.encode()) <= 253
        assert text.isprintable()
    for traffic, rate in found.rates:
        assert traffic
        assert 64_000 <= rate <= 10**12
