"""CNI requests (specification 1.1.0, sections 2 and 3): from variables and JSON to a `Request`.

Validation is complete before anything is done. The order of the checks and the codes are the
reference implementation's (containernetworking/cni, pkg/skel): variables (4), JSON (6), network
name and type (7), version (1), and then what the verb needs. Where that is destructive or vague,
as for GC without a list and for DEL, this is stricter.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cni import results
from cni.runtime_config import RuntimeConfig, parse_runtime_config
from netmgr import errors
from netmgr.model import AttachmentKey, PodRef

# The reference's libcni and skel take exactly these (pkg/utils, ValidateContainerID).
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""Container ids and network names; to be matched in full."""

# What surrogateescape makes of such bytes.
_NOT_UTF8 = re.compile("[\ud800-\udfff]")

_IFNAME_BYTES = 15  # IFNAMSIZ is 16 and holds the closing NUL
# The kernel refuses the first two; the others are directories of sysctls beside interfaces'.
_NO_IFNAMES = (".", "..", "all", "default")
_LABEL_LIMIT = 253


class Verb(StrEnum):
    """CNI_COMMAND."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


_POD_KEYS = ("K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID")
REQUEST_KEYS = ("IP", "MAC")
"""What CNI_ARGS may ask for; `runtime_config` reads it."""

MOST_WAIT_SECONDS = 10
"""Of the launcher, for an agent that is being replaced; the configuration's `wait`."""

# As the reference's UnmarshallableBool reads them (pkg/types).
_TRUTH = {"1": True, "true": True, "0": False, "false": False}

# Section 2, verb by verb. DEL comes without CNI_NETNS when the sandbox is gone already.
_REQUIRED = {
    Verb.ADD: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.CHECK: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.DEL: ("CNI_CONTAINERID", "CNI_IFNAME"),
    Verb.GC: ("CNI_PATH",),
    Verb.STATUS: (),
    Verb.VERSION: (),
}

# The specification's key, and what libcni up to 1.2 sent by mistake; later ones send both.
VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")

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
    netns_override: bool = False
    """The runtime allows a sandbox that is the plugin's own namespace; else that is an error."""
    previous: results.PreviousResult | None = None
    valid_attachments: frozenset[AttachmentKey] | None = None
    """What GC has to keep; None if the runtime gives no list."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """What the runtime asks of an ADD."""

    @property
    def key(self) -> AttachmentKey:
        """The attachment this request is about (ADD, DEL, CHECK)."""
        return AttachmentKey(self.container_id, self.ifname)

    @property
    def pod(self) -> PodRef:
        """The pod of the attachment; what CNI_ARGS leave out is filled in."""
        # Runtimes outside Kubernetes, as podman, name no pod.
        return PodRef(
            namespace=self.args.get("K8S_POD_NAMESPACE") or "-",
            name=self.args.get("K8S_POD_NAME") or self.container_id,
            uid=self.args.get("K8S_POD_UID", ""),
        )

    @property
    def dns(self) -> results.Json:
        """`dns` of the configuration, with what the runtime changes; it is only passed on."""
        value = self.config.get("dns")
        return (value if isinstance(value, dict) else {}) | self.runtime.dns


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
    # A runtime asks for versions before it has a container: the other variables are missing then.
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
    # A missing one is empty.
    given = defaultdict(str, environment)
    args = parse_args(given["CNI_ARGS"])
    if verb is Verb.ADD:
        _check_addition(config, previous, given["CNI_IFNAME"])
    return Request(
        command=verb,
        version=version,
        network=network,
        config=config,
        container_id=given["CNI_CONTAINERID"],
        netns=given["CNI_NETNS"],
        ifname=given["CNI_IFNAME"],
        args=args,
        # Read as skel reads it, case included.
        netns_override=given["CNI_NETNS_OVERRIDE"].lower() in ("1", "true"),
        previous=previous,
        valid_attachments=_valid_attachments(config) if verb is Verb.GC else None,
        runtime=parse_runtime_config(config, args) if verb is Verb.ADD else RuntimeConfig(),
    )


def _deletion(environment: Mapping[str, str], config: Mapping[str, object]) -> Request:
    """The DEL, with whatever else of it is valid."""
    # Container and interface are enough: nothing else that is wrong keeps a pod from being deleted.
    # No runtime that called ADD sends variables that are not UTF-8, or input that is not JSON.
    given = defaultdict(str, environment)
    netns, network = given["CNI_NETNS"], config.get("name")
    request = Request(
        command=Verb.DEL,
        version=_spoken(config.get("cniVersion")),
        network=network if isinstance(network, str) else "",
        config=config,
        container_id=given["CNI_CONTAINERID"],
        # A malformed path is no sandbox; wiring that is found without it still goes.
        netns=netns if netns.startswith("/") else "",
        ifname=given["CNI_IFNAME"],
    )
    with suppress(errors.InvalidEnvironment):
        request = replace(request, args=parse_args(given["CNI_ARGS"]))
    with suppress(errors.InvalidNetworkConfig):
        request = replace(request, previous=_previous(Verb.DEL, config))
    return request


def version_of(stdin: bytes) -> str:
    """The version for an error or VERSION answer, however broken the request is."""
    try:
        version = _decode(stdin).get("cniVersion")
    except errors.DecodingFailure:
        return results.NEWEST
    return _spoken(version)


def _spoken(version: object) -> str:
    is_ours = isinstance(version, str) and version in results.SUPPORTED_VERSIONS
    return str(version) if is_ours else results.NEWEST


def _decode(stdin: bytes) -> dict[str, object]:
    try:
        # Deeply nested JSON raises RecursionError, which is no ValueError.
        config = json.loads(stdin)
    except (ValueError, RecursionError) as error:
        raise errors.DecodingFailure(
            "the network configuration on standard input is not JSON", str(error)
        ) from None
    if not isinstance(config, dict):
        raise errors.DecodingFailure(
            "the network configuration on standard input must be a JSON object"
        )
    return config


def _network(config: Mapping[str, object]) -> str:
    name, plugin = config.get("name"), config.get("type")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise errors.InvalidNetworkConfig(
            f"name: {_shown(config, 'name')}, must be letters, digits, '_', '.' and '-'"
        )
    if not isinstance(plugin, str) or not plugin or "/" in plugin:
        raise errors.InvalidNetworkConfig(
            f"type: {_shown(config, 'type')}, must be the plugin's file name"
        )
    return name


def _shown(config: Mapping[str, object], key: str) -> str:
    return repr(config[key])[:80] if key in config else "is missing"


def _check_addition(
    config: Mapping[str, object], previous: results.PreviousResult | None, ifname: str
) -> None:
    """For ADD alone: what an older configuration attached must stay checkable and deletable."""
    for key in _DECIDED_BY_THE_NODE:
        if config.get(key):
            raise errors.UnsupportedField(
                f"{key}: {_shown(config, key)} is decided by node.yaml; remove the key"
            )
    check_wait(config.get("wait", 0))
    if previous and any(link.name == ifname and link.sandbox for link in previous.interfaces):
        raise errors.InvalidNetworkConfig(
            f"prevResult: a plugin earlier in the chain made {ifname} already; put netmgr first"
        )


def _version(verb: Verb, config: Mapping[str, object]) -> str:
    version = config.get("cniVersion", "0.1.0")  # what a configuration without one means
    if not isinstance(version, str):
        raise errors.DecodingFailure(
            f"cniVersion: {_shown(config, 'cniVersion')}, must be a string"
        )
    if version not in results.SUPPORTED_VERSIONS:
        raise errors.IncompatibleVersion(
            f"cniVersion {version[:20]!r} is not supported",
            f"supported: {', '.join(results.SUPPORTED_VERSIONS)}",
        )
    if verb in _SINCE and not results.at_least(version, _SINCE[verb]):
        raise errors.IncompatibleVersion(
            f"cniVersion {version} does not allow {verb}", f"{verb} is part of {_SINCE[verb]}"
        )
    return version


def check_wait(seconds: object) -> None:
    """Refuse a `wait` that the launcher would refuse."""
    # bool is an int to Python, and no number in JSON.
    if type(seconds) is not int or not 0 <= seconds <= MOST_WAIT_SECONDS:
        raise errors.InvalidNetworkConfig(
            f"wait: {str(seconds)[:40]!r}, must be a whole number of seconds from 0 to "
            f"{MOST_WAIT_SECONDS}"
        )


def _previous(verb: Verb, config: Mapping[str, object]) -> results.PreviousResult | None:
    document = config.get("prevResult")
    if document is None:
        if verb is Verb.CHECK:
            raise errors.InvalidNetworkConfig("prevResult: is missing, and CHECK compares with it")
        return None
    return results.parse_previous(document)


def _valid_attachments(config: Mapping[str, object]) -> frozenset[AttachmentKey] | None:
    given = [key for key in VALID_ATTACHMENTS if key in config]
    # libcni's cnitool sends no list. Taken for an empty one, it would delete every other runtime's
    # pods; an explicit null or empty list does mean that none is valid.
    if not given:
        return None
    # The union, if a runtime sends both keys: what either one names is alive.
    valid: set[AttachmentKey] = set()
    for key in given:
        entries = config[key] if config[key] is not None else []
        if not isinstance(entries, list):
            raise errors.InvalidNetworkConfig(f"{key}: must be an array")
        valid.update(_attachment(key, entry) for entry in entries)
    return frozenset(valid)


def _attachment(key: str, entry: object) -> AttachmentKey:
    if isinstance(entry, dict):
        container, ifname = entry.get("containerID"), entry.get("ifname")
        if isinstance(container, str) and container and isinstance(ifname, str) and ifname:
            return AttachmentKey(container, ifname)
    raise errors.InvalidNetworkConfig(
        f"{key}: each entry must be an object with the strings containerID and ifname"
    )


def parse_verb(environment: Mapping[str, str]) -> Verb:
    command = environment.get("CNI_COMMAND")
    if not command:
        raise errors.InvalidEnvironment("required variables missing: CNI_COMMAND")
    try:
        return Verb(command)
    except ValueError:
        raise errors.InvalidEnvironment(
            f"CNI_COMMAND: {command!r} is not one of {', '.join(Verb)}"
        ) from None


def check_text(environment: Mapping[str, str]) -> None:
    # No name of Kubernetes has such bytes, and no state file could hold it.
    broken = sorted(name for name, value in environment.items() if _NOT_UTF8.search(name + value))
    if broken:
        raise errors.InvalidEnvironment(
            f"bytes that are not UTF-8 in {', '.join(map(ascii, broken))}"
        )


def check_variables(verb: Verb, environment: Mapping[str, str]) -> None:
    """Refuse a request whose variables are not what the verb requires."""
    missing = [name for name in _REQUIRED[verb] if not environment.get(name)]
    faults = [f"required variables missing: {', '.join(missing)}"] if missing else []
    for name in _REQUIRED[verb]:
        value = environment.get(name)
        if value and name in _FAULTS and (fault := _FAULTS[name](value)):
            faults.append(f"{name}: {value!r} {fault}")
    if faults:
        raise errors.InvalidEnvironment("; ".join(faults))


def _ifname_fault(value: str) -> str:
    if len(value.encode(errors="surrogateescape")) > _IFNAME_BYTES:
        return f"is longer than {_IFNAME_BYTES} bytes"
    if value in _NO_IFNAMES:
        return "is not a name"
    # The kernel takes '%d' for a request to choose a number, and any other byte for part of the
    # name.
    if any(not "!" <= character <= "~" or character in "/:%" for character in value):
        return "must be printable ASCII without '/', ':', '%' or white space"
    return ""


_FAULTS: Mapping[str, Callable[[str], str]] = {
    "CNI_CONTAINERID": lambda value: (
        ""
        if NAME.fullmatch(value)
        else "must be letters, digits, '_', '.' and '-', a letter or digit first"
    ),
    "CNI_IFNAME": _ifname_fault,
    "CNI_NETNS": lambda value: "" if value.startswith("/") else "must be an absolute path",
}


def parse_args(text: str) -> dict[str, str]:
    """Read CNI_ARGS, `KEY=VALUE;KEY=VALUE` in any order; keys we do not know need IgnoreUnknown.

    Raises:
        InvalidEnvironment: a pair is malformed, a key unknown, or a value not a Kubernetes name.
    """
    args = dict(_pair(pair) for pair in text.split(";")) if text else {}
    ignore = _TRUTH.get(args.pop("IgnoreUnknown", "0").lower())
    if ignore is None:
        raise errors.InvalidEnvironment("CNI_ARGS: IgnoreUnknown must be 1, true, 0 or false")
    unknown = sorted(set(args) - {*_POD_KEYS, *REQUEST_KEYS})
    if unknown and not ignore:
        raise errors.InvalidEnvironment(
            f"CNI_ARGS: unknown keys {', '.join(unknown)} without IgnoreUnknown=1"
        )
    for key in _POD_KEYS:
        value = args.get(key)
        if value and (not NAME.fullmatch(value) or len(value) > _LABEL_LIMIT):
            raise errors.InvalidEnvironment(
                f"CNI_ARGS: {key} {value[:80]!r} is not a name of Kubernetes"
            )
    return args


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    # The reference splits at every '=' as well, and refuses a third part.
    if not key or not equals or "=" in value:
        raise errors.InvalidEnvironment(f"CNI_ARGS: {text[:80]!r} is not KEY=VALUE")
    return key, value
