"""Every error netmgr raises on purpose, and what each one says to its three readers.

    NetmgrError                 100  base; never raised itself
    ├─ ConfigError                7  a document is wrong: fix the file and key it names
    ├─ RequestError                  the CNI request is wrong: the runtime's fault
    │  ├─ IncompatibleVersion     1  of CNI
    │  ├─ UnsupportedField        2  … of the network configuration
    │  ├─ UnknownContainer        3  the runtime need not call DEL for it
    │  ├─ InvalidEnvironment      4  a CNI_* variable is missing or malformed
    │  ├─ IoFailure               5  the request's bytes never arrived whole
    │  ├─ DecodingFailure         6  standard input is not the JSON it should be
    │  └─ InvalidNetworkConfig    7  … which decodes but fails validation
    ├─ TryAgainLater             11  nothing is wrong that time will not mend
    │  ├─ NoAgent               11  no agent has a socket there; who waits, waits for its start
    │  └─ RangesUnknown         11  the source of a node's ranges has no usable answer
    ├─ NotReady                  50  STATUS only: an ADD would fail now
    │  └─ NodeFull               50  … because of what pods use alone; STATUS succeeds
    ├─ LimitedConnectivity       51  STATUS only: and running pods suffer too
    ├─ CapacityError            101  every address is held, cooling down or withdrawn
    │  └─ AddressUnavailable    101  the requested address is held, in cooldown or of no range
    ├─ KernelError              102  the kernel refused; carries errno and the operation
    │  └─ LinkRefused           102  … that a link counts; all else that was asked for is done
    ├─ StateError               103  a state file cannot be read, written or trusted
    │  ├─ DiskFull              103  … because its disk has no room
    │  └─ OtherSchema           103  … because another version wrote it; it is kept
    ├─ CheckFailed              104  CHECK found an attachment not as it was made
    ├─ QueryFailed              100  the agent failed at a query that is right
    ├─ SetupError               105  this machine lacks a program, library or privilege
    └─ ApiError                 107  the Kubernetes API server refused; carries the HTTP status
       └─ ApiUnavailable        107  … or cannot answer now: unreachable, overloaded, failing

`cni_code` goes to the container runtime (CNI specification 1.1.0, "Error": 1 to 99 are
the specification's, ours start at 100), `exit_code` to the shell, and `retryable` to
whoever must decide whether the same call can succeed later without a change.
"""

from __future__ import annotations

from enum import IntEnum
from errno import EACCES, EDQUOT, EISDIR, EMFILE, ENFILE, ENOENT, ENOSPC, ENOTDIR, EPERM, EROFS
from os import strerror
from typing import ClassVar, Self

SIGNAL_EXIT = 128
"""Exit code of a command that a signal ended: this plus the signal's number, as in a shell."""


class Exit(IntEnum):
    """Exit codes, and what each says; `docs/reference/exit-codes.md` has the same table.

    A code has one meaning in all commands, so that a mistyped one is never taken for changes.
    """

    meaning: str

    SUCCESS = 0, "done, or nothing to do; what was examined is as it should be"
    FAILURE = 1, "an error, or what was examined is not as it should be"
    INVALID = 2, "wrong options or arguments, or a missing or wrong document: nothing was done"
    CHANGES = 3, "changes: there is something to write, and nothing was written"
    FAULT = 70, "a fault of netmgr's own in a daemon, which is to be started again (EX_SOFTWARE)"

    def __new__(cls, code: int, meaning: str) -> Self:
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        return self


class NetmgrError(Exception):
    """Base of the tree. `details` is a second, longer message with the cause."""

    cni_code: ClassVar[int] = 100
    exit_code: ClassVar[Exit] = Exit.FAILURE
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class ConfigError(NetmgrError):
    """A document is malformed or contradicts itself; the message names file, key and line."""

    cni_code = 7
    exit_code = Exit.INVALID


class RequestError(NetmgrError):
    """A request breaks its rules: a runtime's those of CNI, or a command's those of a query."""

    exit_code = Exit.INVALID


class IncompatibleVersion(RequestError):
    cni_code = 1


class UnsupportedField(RequestError):
    cni_code = 2


class UnknownContainer(RequestError):
    cni_code = 3


class InvalidEnvironment(RequestError):
    cni_code = 4


class IoFailure(RequestError):
    cni_code = 5


class DecodingFailure(RequestError):
    cni_code = 6


class InvalidNetworkConfig(RequestError):
    cni_code = 7


class TryAgainLater(NetmgrError):
    """A bounded wait ended before its turn came, or the agent is still starting."""

    cni_code = 11
    retryable = True


class NoAgent(TryAgainLater):
    """No agent has a socket there: unless somebody starts one, trying again is no use."""

    retryable = False


class RangesUnknown(TryAgainLater):
    """The source of ranges has no usable answer; it asks to be left alone for `retry_after` s."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReady(NetmgrError):
    cni_code = 50
    retryable = True


class NodeFull(NotReady):
    """Pods use all addresses, or all of the disk: nothing is wrong with the plugin."""


class LimitedConnectivity(NetmgrError):
    cni_code = 51
    retryable = True


class CapacityError(NetmgrError):
    cni_code = 101
    retryable = True


class AddressUnavailable(CapacityError):
    """The address that a runtime asks for cannot be given; the message says why."""


class KernelError(NetmgrError):
    """The kernel refused an operation; `errno` is positive, 0 where it gave none."""

    cni_code = 102

    def __init__(self, operation: str, errno: int = 0, details: str = "") -> None:
        reason = strerror(errno) if errno else details or "refused"
        super().__init__(f"{operation}: {reason}", details)
        self.operation = operation
        self.errno = errno


class LinkRefused(KernelError):
    """A link cannot count; all else that was asked for is done."""


class Ignoring:
    """Goes on behind the block where the kernel refuses with one of these error numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        pass

    # Declared as bool: so mypy knows that what comes behind the block is reached.
    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, KernelError) and error.errno in self._numbers


class StateError(NetmgrError):
    cni_code = 103


class DiskFull(StateError):
    """A state file cannot be written until there is room on its disk."""


class OtherSchema(StateError):
    """A state file is of another version's schema; it is perfectly good and was not touched."""


class CheckFailed(NetmgrError):
    cni_code = 104


class QueryFailed(NetmgrError):
    """The agent could not answer a query; the message is its own."""


class SetupError(NetmgrError):
    cni_code = 105


class ApiError(NetmgrError):
    """The Kubernetes API server refused a request; `status` is HTTP's, 0 where no answer came."""

    cni_code = 107

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnavailable(ApiError):
    """The Kubernetes API server is unreachable, overloaded or failing; the request is fine."""

    retryable = True


_REMEDIES = {
    EACCES: "run it as root, or as a user who may",
    EPERM: "run it as root, or as a user who may",
    EROFS: "mount it writable, or name a place on another file system",
    ENOSPC: "make room on its disk",
    EDQUOT: "make room on its disk",
    ENOENT: "make it first, or name another",
    ENOTDIR: "name another: a file is in the way",
    EISDIR: "name a file: this is a directory",
    EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    ENFILE: "raise the limit of open files (sysctl fs.file-max)",
}


def of_system(error: OSError) -> SetupError:
    """The error for what the operating system refused: where, why, and what to do about it."""
    place = f"{error.filename}: " if error.filename is not None else ""
    return SetupError(place + reason(error))


def reason(error: OSError) -> str:
    """Why the operating system refused, and what to do about it."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{error.strerror or error}" + (f"; {remedy}" if remedy else "")
