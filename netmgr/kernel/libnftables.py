"""libnftables in this process: run nft commands without starting nft.

Of its C interface (<nftables/libnftables.h>), what is the same in every version from 1.0.2 to 1.1.
A context's netlink socket belongs to the namespace it was opened in.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from json import loads
from typing import Any

from netmgr.errors import KernelError, SetupError

LIBRARY = "libnftables.so.1"
_OUTPUT_JSON = 1 << 4

# Results and arguments of the functions that are used.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nft_ctx_new": (ctypes.c_void_p, ctypes.c_uint32),
    "nft_ctx_free": (None, ctypes.c_void_p),
    "nft_ctx_buffer_output": (ctypes.c_int, ctypes.c_void_p),
    "nft_ctx_buffer_error": (ctypes.c_int, ctypes.c_void_p),
    "nft_ctx_get_output_buffer": (ctypes.c_char_p, ctypes.c_void_p),
    "nft_ctx_get_error_buffer": (ctypes.c_char_p, ctypes.c_void_p),
    "nft_ctx_output_set_flags": (None, ctypes.c_void_p, ctypes.c_uint),
    "nft_run_cmd_from_buffer": (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p),
}
# The library reports the kernel's errors as text only.
_ERRNO_BY_TEXT = {os.strerror(number): number for number in errno.errorcode}


class LibNftables:
    """One context of the library; SetupError if it is not installed."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            remedy = "get it with: apt-get install libnftables1"
            raise SetupError(f"{LIBRARY} is not installed; {remedy}") from None
        for name, (result, *arguments) in _FUNCTIONS.items():
            # An undeclared result is an int for ctypes, which cuts a pointer to 32 bits.
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        # A context is not thread-safe.
        self._lock = threading.Lock()
        self._context: int | None = self._library.nft_ctx_new(0)
        if not self._context:
            raise KernelError("open an nftables context", details="the library gave none")
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def run(self, commands: str, *, json: bool = False) -> str:
        """Run commands as one transaction; returns what they print. All or none is done."""
        with self._lock:
            self._library.nft_ctx_output_set_flags(self._context, _OUTPUT_JSON if json else 0)
            failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
            # Fetching a buffer also empties it for the next command, so both are always fetched.
            output = self._library.nft_ctx_get_output_buffer(self._context)
            errors = self._library.nft_ctx_get_error_buffer(self._context)
        if failed:
            raise _error(commands, errors.decode(errors="replace"))
        # A comment of another program's rule may be any bytes.
        return str(output.decode(errors="replace"))

    def listing(self, command: str) -> list[dict[str, Any]]:
        """The objects that a command lists (libnftables-json(5)); KernelError if it is no JSON."""
        output = self.run(command, json=True)
        try:
            objects: list[dict[str, Any]] = loads(output)["nftables"]
        except (ValueError, LookupError, TypeError):
            # nft 1.0.6 prints a remark between the objects of a table that another program owns.
            raise KernelError(f"nft {command}", details="another program owns the table") from None
        return objects

    def close(self) -> None:
        """Close the context's socket; the object cannot be used any more."""
        with self._lock:
            if self._context:
                self._library.nft_ctx_free(self._context)
                self._context = None


def _error(commands: str, errors: str) -> KernelError:
    first, _, rest = errors.strip().partition("\n")
    culprit = rest.partition("\n")[0].strip() or commands.strip().partition("\n")[0]
    # Some refusals go on behind a semicolon: "No such file or directory; did you mean set …".
    number = _ERRNO_BY_TEXT.get(first.rpartition(": ")[2].partition(";")[0], 0)
    return KernelError(f"nft {culprit}", number, first or "refused without a reason")
