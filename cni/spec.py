"""CNI requests (specification 1.1.0, sections 2 and 3): from variables and JSON to a `Request`.

Validation is complete before anything is done. The order of the checks and the codes are
those of the reference implementation (containernetworking/cni, pkg/skel): variables (4),
JSON (6), network name and type (7), version (1), and then what the verb needs. Where the
reference is destructive or vague, this is stricter:

- GC without a list of valid attachments, as libcni's cnitool sends it after it deleted what its own
  cache has, collects only what has lost its sandbox: plugins that take it for an empty list would
  delete every other runtime's pods. An explicit null or empty list does mean "none".
- DEL is best-effort: what it needs is the container and the interface, so nothing else in it that is
  malformed (CNI_ARGS, prevResult, network name, version) keeps a pod from being deleted. Variables
  that are not UTF-8 do, and standard input that is not JSON: no runtime that called ADD sends either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cni.previous import Interface, PreviousResult, parse_previous
from cni.results import (
    NEWEST,
    SUPPORTED_VERSIONS,
    Json,
    Wiring,
    add_result,
    at_least,
    error_result,
    version_result,
)
from cni.runtime_config import RuntimeConfig, parse_runtime_config
from cni.variables import NAME, Verb, check_text, check_variables, parse_args, parse_verb
from netmgr.errors import (
    DecodingFailure,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidNetworkConfig,
    UnsupportedField,
)
from netmgr.model import NOTHING_REQUESTED, AttachmentKey, PodRef, Requested

__all__ = [
    "NEWEST",
    "SUPPORTED_VERSIONS",
    "Interface",
    "PreviousResult",
    "Request",
    "Verb",
    "Wiring",
    "add_result",
    "error_result",
    "parse_request",
    "pod_ref",
    "version_of",
    "version_result",
]

VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")
"""The specification's key, and the one that libcni up to 1.2 sent by mistake (cni #1101); later ones send both."""

_SINCE = {Verb.CHECK: "0.4.0", Verb.GC: "1.1.0", Verb.STATUS: "1.1.0"}
_DECIDED_BY_THE_NODE = ("ipam", "ipMasq")


@dataclass(frozen=True, slots=True)
class Request:
    """One CNI request that passed validation. Strings are empty where the verb gives none."""

    command: Verb
    version: str
    network: str
    config: Mapping[str, object]
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    netns_override: bool = False
    """The runtime asks for the sandbox to be the plugin's own namespace; otherwise that is an error."""
    previous: PreviousResult | None = None
    valid_attachments: frozenset[AttachmentKey] | None = None
    """What GC has to keep; None where the runtime does not say."""
    runtime: RuntimeConfig | None = None
    """What the runtime asks of an ADD."""

    @property
    def key(self) -> AttachmentKey:
        """The attachment this request is about (ADD, DEL, CHECK)."""
        return AttachmentKey(self.container_id, self.ifname)

    @property
    def dns(self) -> Json:
        """`dns` of the configuration, which a plugin without a resolver of its own passes on, as the runtime has it."""
        value = self.config.get("dns")
        return (value if isinstance(value, dict) else {}) | (self.runtime.dns if self.runtime else {})

    @property
    def requested(self) -> Requested:
        """What the runtime asks for instead of what the node would choose."""
        return self.runtime.requested if self.runtime else NOTHING_REQUESTED


def parse_request(environment: Mapping[str, str], stdin: bytes) -> Request:
    """Read and validate one request.

    Raises:
        InvalidEnvironment: variables are missing or malformed; the message names each.
        DecodingFailure: `stdin` is not one JSON object.
        InvalidNetworkConfig: a key of it is missing or malformed.
        IncompatibleVersion: its cniVersion is not ours, or older than the verb.
        UnsupportedField: ADD is asked for something that the node's document decides.
    """
    verb = parse_verb(environment)
    if verb is Verb.VERSION:
        return Request(verb, version_of(stdin), "", {})
    check_text(environment)
    check_variables(verb, environment)
    config = _decode(stdin)
    if verb is Verb.DEL:
        return _deletion(environment, config)
    network = _network(config)
    version = _version(verb, config)
    previous = _previous(verb, config)
    args = parse_args(environment.get("CNI_ARGS", ""))
    if verb is Verb.ADD:
        _refuse_unsupported(config)
        _refuse_second_interface(previous, environment["CNI_IFNAME"])
    return Request(
        command=verb,
        version=version,
        network=network,
        config=config,
        container_id=environment.get("CNI_CONTAINERID", ""),
        netns=environment.get("CNI_NETNS", ""),
        ifname=environment.get("CNI_IFNAME", ""),
        args=args,
        path=environment.get("CNI_PATH", ""),
        netns_override=environment.get("CNI_NETNS_OVERRIDE", "").lower() in ("1", "true"),
        previous=previous,
        valid_attachments=_valid_attachments(config) if verb is Verb.GC else None,
        runtime=parse_runtime_config(config, args) if verb is Verb.ADD else None,
    )


def _deletion(environment: Mapping[str, str], config: Mapping[str, object]) -> Request:
    """The DEL, with whatever else of it makes sense."""
    netns, network = environment.get("CNI_NETNS", ""), config.get("name")
    request = Request(
        command=Verb.DEL,
        version=_spoken(config.get("cniVersion")),
        network=network if isinstance(network, str) else "",
        config=config,
        container_id=environment["CNI_CONTAINERID"],
        netns=netns if netns.startswith("/") else "",
        ifname=environment["CNI_IFNAME"],
        path=environment.get("CNI_PATH", ""),
    )
    with suppress(InvalidEnvironment):
        request = replace(request, args=parse_args(environment.get("CNI_ARGS", "")))
    with suppress(InvalidNetworkConfig):
        request = replace(request, previous=_previous(Verb.DEL, config))
    return request


def pod_ref(request: Request) -> PodRef:
    """Who the attachment belongs to, with what CNI_ARGS leave out filled in."""
    return PodRef(
        namespace=request.args.get("K8S_POD_NAMESPACE") or "-",
        name=request.args.get("K8S_POD_NAME") or request.container_id,
        uid=request.args.get("K8S_POD_UID", ""),
    )


def version_of(stdin: bytes) -> str:
    """The version an error or VERSION answer should carry, however broken the request is."""
    try:
        version = _decode(stdin).get("cniVersion")
    except DecodingFailure:
        return NEWEST
    return _spoken(version)


def _spoken(version: object) -> str:
    return version if isinstance(version, str) and version in SUPPORTED_VERSIONS else NEWEST


def _decode(stdin: bytes) -> dict[str, object]:
    try:
        config = json.loads(stdin)
    except (ValueError, RecursionError) as error:
        raise DecodingFailure("the network configuration on standard input is not JSON", str(error)) from None
    if not isinstance(config, dict):
        raise DecodingFailure("the network configuration on standard input must be a JSON object")
    return config


def _network(config: Mapping[str, object]) -> str:
    name, plugin = config.get("name"), config.get("type")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidNetworkConfig(f"name: {_shown(config, 'name')}, must be letters, digits, '_', '.' and '-'")
    if not isinstance(plugin, str) or not plugin or "/" in plugin:
        raise InvalidNetworkConfig(f"type: {_shown(config, 'type')}, must be the plugin's file name")
    return name


def _shown(config: Mapping[str, object], key: str) -> str:
    return repr(config[key])[:80] if key in config else "is missing"


def _version(verb: Verb, config: Mapping[str, object]) -> str:
    version = config.get("cniVersion", "0.1.0")  # what a configuration without one means
    if not isinstance(version, str):
        raise DecodingFailure(f"cniVersion: {_shown(config, 'cniVersion')}, must be a string")
    if version not in SUPPORTED_VERSIONS:
        raise IncompatibleVersion(
            f"cniVersion {version[:20]!r} is not supported", f"supported: {', '.join(SUPPORTED_VERSIONS)}"
        )
    if verb in _SINCE and not at_least(version, _SINCE[verb]):
        raise IncompatibleVersion(f"cniVersion {version} does not allow {verb}", f"{verb} is part of {_SINCE[verb]}")
    return version


def _refuse_unsupported(config: Mapping[str, object]) -> None:
    for key in _DECIDED_BY_THE_NODE:
        if config.get(key):
            raise UnsupportedField(f"{key}: {_shown(config, key)} is for the node's document to say; remove the key")


def _refuse_second_interface(previous: PreviousResult | None, ifname: str) -> None:
    if previous and any(link.name == ifname and link.sandbox for link in previous.interfaces):
        raise InvalidNetworkConfig(f"prevResult: a plugin earlier in the chain made {ifname} already; put netmgr first")


def _previous(verb: Verb, config: Mapping[str, object]) -> PreviousResult | None:
    document = config.get("prevResult")
    if document is None:
        if verb is Verb.CHECK:
            raise InvalidNetworkConfig("prevResult: is missing, and CHECK compares with it")
        return None
    return parse_previous(document)


def _valid_attachments(config: Mapping[str, object]) -> frozenset[AttachmentKey] | None:
    given = [key for key in VALID_ATTACHMENTS if key in config]
    if not given:
        return None
    return frozenset(_attachment(key, entry) for key in given for entry in _list(config, key))


def _list(config: Mapping[str, object], key: str) -> list[object]:
    entries = config[key]
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise InvalidNetworkConfig(f"{key}: must be an array")
    return entries


def _attachment(key: str, entry: object) -> AttachmentKey:
    if isinstance(entry, dict):
        container, ifname = entry.get("containerID"), entry.get("ifname")
        if isinstance(container, str) and container and isinstance(ifname, str) and ifname:
            return AttachmentKey(container, ifname)
    raise InvalidNetworkConfig(f"{key}: each entry must be an object with the strings containerID and ifname")
