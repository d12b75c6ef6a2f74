"""The part of the Container Runtime Interface (v1) these tests speak, on the wire.

The fields used are text, other messages, which protocol buffers both write as field number
and type, length, bytes, and whole numbers. So the few messages are dictionaries from field
number to value here, a list where a field is repeated, and no generated code is needed.
Numbers are those of Kubernetes' CRI v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
TIMEOUT = 60.0
LENGTH_DELIMITED, VARINT = 2, 0
Message: TypeAlias = "dict[int, str | bytes | int | Message | list[Message]]"


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What kubelet says of a pod."""

    name: str
    namespace: str
    uid: str
    host_ports: Mapping[int, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def message(self) -> Message:
        """PodSandboxConfig: metadata 1 (PodSandboxMetadata: name 1, uid 2, namespace 3), hostname
        2, port_mappings 5 (PortMapping: container_port 2, host_port 3; its protocol is TCP when it
        is left out), annotations 7 (a map: key 1, value 2), linux 8.
        """
        ports: list[Message] = [
            {2: inside, 3: outside} for outside, inside in self.host_ports.items()
        ]
        said: Message = {1: {1: self.name, 2: self.uid, 3: self.namespace}, 2: self.name, 5: ports}
        notes: list[Message] = [{1: key, 2: value} for key, value in self.annotations.items()]
        return said | {7: notes, 8: {1: f"/{self.namespace}"}}


class Cri:
    """A client of the runtime service at a Unix socket."""

    def __init__(self, socket: Path) -> None:
        # containerd refuses the default authority, which is the socket's path percent-encoded.
        self._channel = grpc.insecure_channel(
            f"unix:{socket}", options=[("grpc.default_authority", "localhost")]
        )

    def answers(self) -> bool:
        """Whether the service is there: containerd starts it after others."""
        try:
            self._call("Status", {})
        except grpc.RpcError:
            return False
        return True

    def network_is_ready(self) -> bool:
        """StatusResponse: status 1, its conditions 1 (RuntimeCondition: type 1, status 2, left out
        when false).
        """
        status = next(values(self._call("Status", {}), 1))
        return any(
            next(values(condition, 1)) == b"NetworkReady" and 1 in values(condition, 2)
            for condition in values(status, 1)
        )

    def run_pod_sandbox(self, config: SandboxConfig) -> str:
        """RunPodSandboxRequest: config 1; RunPodSandboxResponse: pod_sandbox_id 1."""
        return next(values(self._call("RunPodSandbox", {1: config.message()}), 1)).decode()

    def addresses(self, sandbox: str) -> list[str]:
        """PodSandboxStatusResponse: status 1, its network 5 (ip 1, additional_ips 2, each with ip
        1).
        """
        status = next(values(self._call("PodSandboxStatus", {1: sandbox}), 1))
        network = next(values(status, 5))
        found = [*values(network, 1), *(next(values(more, 1)) for more in values(network, 2))]
        return [address.decode() for address in found]

    def stop_pod_sandbox(self, sandbox: str) -> None:
        """StopPodSandboxRequest: pod_sandbox_id 1."""
        self._call("StopPodSandbox", {1: sandbox})

    def remove_pod_sandbox(self, sandbox: str) -> None:
        """RemovePodSandboxRequest: pod_sandbox_id 1."""
        self._call("RemovePodSandbox", {1: sandbox})

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Message) -> bytes:
        return self._channel.unary_unary(SERVICE + method)(encode(request), timeout=TIMEOUT)


def encode(message: Message) -> bytes:
    repeated = (
        (number, value if isinstance(value, list) else [value]) for number, value in message.items()
    )
    return b"".join(_field(number, each) for number, those in repeated for each in those)


def values(message: bytes, number: int) -> Iterator[bytes | int]:
    """Every value of one field: bytes of text and messages, whole numbers."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        if key & 7 == VARINT:
            value, offset = _varint(message, offset)
        else:
            assert key & 7 == LENGTH_DELIMITED, f"wire type {key & 7} is not used by these messages"
            length, offset = _varint(message, offset)
            value, offset = message[offset : offset + length], offset + length
        if key >> 3 == number:
            yield value


def _field(number: int, value: str | bytes | int | Message) -> bytes:
    if isinstance(value, int):
        return _as_varint(number << 3 | VARINT) + _as_varint(value)
    content = (
        encode(value)
        if isinstance(value, dict)
        else value.encode()
        if isinstance(value, str)
        else value
    )
    return _as_varint(number << 3 | LENGTH_DELIMITED) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
