"""The CNI_* variables a runtime sets (specification 1.1.0, section 2, "Parameters")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from netmgr.errors import InvalidEnvironment

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""Container ids and network names; to be matched in full."""

_IFNAME_BYTES = 15  # IFNAMSIZ is 16 and holds the closing NUL
_NO_IFNAMES = (".", "..", "all", "default")
"""The kernel refuses the first two; the others name directories of sysctls beside the interfaces' own."""
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

_TRUTH = {"1": True, "true": True, "0": False, "false": False}

_REQUIRED = {
    Verb.ADD: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.CHECK: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.DEL: ("CNI_CONTAINERID", "CNI_IFNAME"),
    Verb.GC: ("CNI_PATH",),
    Verb.STATUS: (),
    Verb.VERSION: (),
}


def parse_verb(environment: Mapping[str, str]) -> Verb:
    """The verb.

    Raises:
        InvalidEnvironment: CNI_COMMAND is missing or unknown.
    """
    command = environment.get("CNI_COMMAND", "")
    if not command:
        raise InvalidEnvironment("required variables missing: CNI_COMMAND")
    try:
        return Verb(command)
    except ValueError:
        raise InvalidEnvironment(f"CNI_COMMAND: {command!r} is none of {', '.join(Verb)}") from None


def check_text(environment: Mapping[str, str]) -> None:
    """Refuse a request of which a variable is not UTF-8: no name of Kubernetes is, and no state file could hold it.

    Raises:
        InvalidEnvironment: names each.
    """
    broken = sorted(name for name, value in environment.items() if not _is_text(name + value))
    if broken:
        raise InvalidEnvironment(f"bytes that are not UTF-8 in {', '.join(map(ascii, broken))}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_variables(verb: Verb, environment: Mapping[str, str]) -> None:
    """Refuse a request whose variables are not what the verb requires.

    Raises:
        InvalidEnvironment: names every variable that is missing or malformed.
    """
    missing = [name for name in _REQUIRED[verb] if not environment.get(name)]
    faults = [f"required variables missing: {', '.join(missing)}"] if missing else []
    for name in _REQUIRED[verb]:
        value = environment.get(name, "")
        if value and name in _FAULTS and (fault := _FAULTS[name](value)):
            faults.append(f"{name}: {value!r} {fault}")
    if faults:
        raise InvalidEnvironment("; ".join(faults))


def _container_id_fault(value: str) -> str:
    return "" if NAME.fullmatch(value) else "must be letters, digits, '_', '.' and '-', a letter or digit first"


def _ifname_fault(value: str) -> str:
    if len(value.encode(errors="surrogateescape")) > _IFNAME_BYTES:
        return f"is longer than {_IFNAME_BYTES} bytes"
    if value in _NO_IFNAMES:
        return "is not a name"
    # The kernel takes '%d' for a request to choose a number, and any other byte for part of the name.
    if any(not "!" <= character <= "~" or character in "/:%" for character in value):
        return "must be printable ASCII without '/', ':', '%' or white space"
    return ""


def _netns_fault(value: str) -> str:
    return "" if value.startswith("/") else "must be an absolute path"


_FAULTS = {"CNI_CONTAINERID": _container_id_fault, "CNI_IFNAME": _ifname_fault, "CNI_NETNS": _netns_fault}


def parse_args(text: str) -> dict[str, str]:
    """Read CNI_ARGS, `KEY=VALUE;KEY=VALUE` in any order; keys we do not know need IgnoreUnknown.

    Raises:
        InvalidEnvironment: a pair is malformed, a key unknown, or a value no name of Kubernetes.
    """
    args = dict(_pair(pair) for pair in text.split(";")) if text else {}
    ignore = _TRUTH.get(args.pop("IgnoreUnknown", "0").lower())
    if ignore is None:
        raise InvalidEnvironment("CNI_ARGS: IgnoreUnknown must be 1, true, 0 or false")
    unknown = sorted(set(args) - {*_POD_KEYS, *REQUEST_KEYS})
    if unknown and not ignore:
        raise InvalidEnvironment(f"CNI_ARGS: unknown keys {', '.join(unknown)} without IgnoreUnknown=1")
    for key in _POD_KEYS:
        value = args.get(key, "")
        if value and (not NAME.fullmatch(value) or len(value) > _LABEL_LIMIT):
            raise InvalidEnvironment(f"CNI_ARGS: {key} {value[:80]!r} is no name of Kubernetes")
    return args


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals or "=" in value:
        raise InvalidEnvironment(f"CNI_ARGS: {text[:80]!r} is not KEY=VALUE")
    return key, value
