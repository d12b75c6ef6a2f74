"""Kubernetes' Service (v1) and EndpointSlice (discovery.k8s.io/v1), as a NAT host needs them.

An endpoint is ready if `conditions.ready` is true or absent. `targetPort` is not read: slices hold
the ports it was resolved to. `internalTrafficPolicy` and topology hints say which of a cluster's
own nodes may use an endpoint, and do not concern a host outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location
from netmgr.prefixes import Address, Family
from netmgr.services.model import Protocol, ServiceName

_SERVICE_LABEL = "kubernetes.io/service-name"
_LISTS = {"List": None, "ServiceList": "Service", "EndpointSliceList": "EndpointSlice"}
_NAME_OF_PROTOCOL = {protocol.name: protocol for protocol in Protocol}
_CLUSTER_IP: KeyPath = ("spec", "clusterIP")
_NO_ADDRESSES = ("", "None")


class Refused(Exception):
    """An object is wrong, or contradicts another one; says where, in `diagnostic`."""

    def __init__(self, at: Location, message: str, beside: Location | None = None) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(message, at, beside)


class State(IntEnum):
    """What an endpoint is good for."""

    READY = 1
    DRAINING = 2
    OUT = 3


@dataclass(frozen=True, slots=True)
class PortOfService:
    """One port of a Service, without `targetPort`."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class Service:
    """A Service; without addresses (headless, ExternalName, not yet allocated) it opens nothing."""

    at: Location
    name: ServiceName
    addresses: Mapping[KeyPath, Address]
    """By where in its document each is."""
    ports: tuple[PortOfService, ...]
    sticky: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice: every endpoint has every port."""

    at: Location
    service: ServiceName
    family: Family
    endpoints: tuple[tuple[Address, State], ...]
    ports: Mapping[tuple[str, Protocol], int]


class _Object(BaseModel):
    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True, frozen=True)


_PortNumber = Annotated[int, Field(ge=1, le=65_535)]


# Names go to logs and messages, so they must hold nothing that a terminal would obey.
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.\-]{0,251}[a-z0-9])?$")]
"""As Kubernetes has names."""


class _Metadata(_Object):
    name: _Name
    namespace: _Name = "default"
    labels: dict[str, str] | None = None


class _ServicePort(_Object):
    name: str | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    port: _PortNumber


class _ServiceSpec(_Object):
    type: str = "ClusterIP"
    cluster_ip: Annotated[str, Field(alias="clusterIP")] = ""
    cluster_ips: Annotated[tuple[str, ...] | None, Field(alias="clusterIPs", max_length=2)] = None
    ports: tuple[_ServicePort, ...] | None = None
    session_affinity: Annotated[Literal["None", "ClientIP"], Field(alias="sessionAffinity")] = (
        "None"
    )


class _Service(_Object):
    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")] = "v1"
    metadata: _Metadata
    spec: _ServiceSpec = _ServiceSpec()


class _Conditions(_Object):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(_Object):
    addresses: Annotated[tuple[str, ...], Field(min_length=1)]
    conditions: _Conditions | None = None


class _SlicePort(_Object):
    name: str | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None
    port: _PortNumber | None = None


class _Slice(_Object):
    api_version: Annotated[Literal["discovery.k8s.io/v1"], Field(alias="apiVersion")] = (
        "discovery.k8s.io/v1"
    )
    metadata: _Metadata
    address_type: Annotated[Literal["IPv4", "IPv6", "FQDN"], Field(alias="addressType")]
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_SlicePort, ...] | None = None


def read(data: object, at: Location) -> Iterator[Service | Slice]:
    """The objects of one document, or of a list in it.

    Raises:
        Refused: something is neither, or is not as Kubernetes has it.
    """
    if not isinstance(data, dict):
        raise Refused(
            at, "must be a Kubernetes object: a Service, an EndpointSlice or a List of these"
        )
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _LISTS:
        yield from _one(data, kind, at)
        return
    listed = data.get("items") or []
    if not isinstance(listed, list):
        raise Refused(at.under("items"), "must be a list")
    for number, item in enumerate(listed):
        inner = at.under("items", number)
        if not isinstance(item, dict):
            raise Refused(inner, "must be a Kubernetes object")
        yield from _one(item, item.get("kind", _LISTS[kind]), inner)


def _one(data: Mapping[str, Any], kind: object, at: Location) -> Iterator[Service | Slice]:
    try:
        if kind == "Service":
            yield _service(_Service.model_validate(data), at)
        elif kind == "EndpointSlice":
            yield from _slice(_Slice.model_validate(data), at)
        elif not isinstance(kind, str):
            raise Refused(at.under("kind"), "must be Service or EndpointSlice")
        else:
            raise Refused(
                at.under("kind"), f"{kind} is neither Service nor EndpointSlice; take it out"
            )
    except ValidationError as error:
        fault = error.errors()[0]
        message = "is required and missing" if fault["type"] == "missing" else fault["msg"]
        raise Refused(at.under(*fault["loc"]), message) from None


def _service(data: _Service, at: Location) -> Service:
    spec = data.spec
    texts: dict[KeyPath, str] = {_CLUSTER_IP: spec.cluster_ip}
    if spec.cluster_ips:
        texts = {
            ("spec", "clusterIPs", number): text for number, text in enumerate(spec.cluster_ips)
        }
    named: dict[KeyPath, Address] = {}
    if spec.type != "ExternalName":
        named = {
            key: _address(it, at.under(*key))
            for key, it in texts.items()
            if it not in _NO_ADDRESSES
        }
    ports = tuple(
        PortOfService(p.name or "", _NAME_OF_PROTOCOL[p.protocol], p.port) for p in spec.ports or ()
    )
    sticky = spec.session_affinity == "ClientIP"
    return Service(at, _name(data.metadata), named, ports, sticky)


def _slice(data: _Slice, at: Location) -> Iterator[Slice]:
    """The slice, unless it belongs to no Service or holds names instead of addresses."""
    service = (data.metadata.labels or {}).get(_SERVICE_LABEL)
    # A slice may belong to another controller than that of Services; FQDN slices have no addresses.
    if not service or data.address_type == "FQDN":
        return
    family = Family.V4 if data.address_type == "IPv4" else Family.V6
    name = ServiceName(data.metadata.namespace, service)
    yield Slice(at, name, family, tuple(_endpoints(data, family, at)), _ports(data))


def _endpoints(data: _Slice, family: Family, at: Location) -> Iterator[tuple[Address, State]]:
    for number, endpoint in enumerate(data.endpoints or ()):
        where = at.under("endpoints", number, "addresses", 0)
        # The API asks consumers to use the first address only.
        address = _address(endpoint.addresses[0], where)
        if address.family is not family:
            raise Refused(where, f"{address} is not of the slice's addressType {data.address_type}")
        yield address, _state(endpoint.conditions or _Conditions())


def _ports(data: _Slice) -> dict[tuple[str, Protocol], int]:
    ports = {}
    for port in data.ports or ():
        # A slice without a port number means all ports, which is nothing that a Service's port
        # could name.
        if port.port is not None:
            ports[port.name or "", _NAME_OF_PROTOCOL[port.protocol or "TCP"]] = port.port
    return ports


def _state(conditions: _Conditions) -> State:
    if conditions.ready is not False:
        return State.READY
    # As in kube-proxy, an endpoint that is terminating but still serving is a last resort.
    return State.DRAINING if conditions.serving and conditions.terminating else State.OUT


def _name(metadata: _Metadata) -> ServiceName:
    return ServiceName(metadata.namespace, metadata.name)


def _address(text: str, at: Location) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise Refused(at, str(error)) from None
