"""Compiles the launcher: one static program that needs nothing of the host it runs on.

The system's C compiler is used where it can link statically. A bare machine has none, and its
compiler does not know the other architecture: for both there is PyPI's `ziglang`, a C compiler with
musl for every architecture.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from netmgr import durable, programs
from netmgr.errors import NetmgrError, SetupError

SOURCE = Path(__file__).with_name("launcher.c")
PARTS = (SOURCE, *sorted(Path(__file__).parent.glob("*.h")))
"""What it is compiled from."""

BINARIES = Path(__file__).with_name("bin")
"""Where built launchers are kept, and where a wheel carries them."""

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures we build for, by Go's and Debian's name, and what Linux calls the machine."""

FLAGS = (
    *("-std=c11", "-Os", "-static", "-s", "-Wall", "-Wextra"),
    # It runs as root on input that others write. None of these costs size or start time; a
    # position-independent program would start 3 % later.
    *("-fstack-protector-strong", "-fstack-clash-protection"),
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,noexecstack"),
)
ZIGLANG_PIN = Path(__file__).parent.parent / ".ci" / "launcher-compiler.lock"
MARK = b"netmgr-cni launcher built from "
"""Every launcher holds this and the digest of its source."""

_EXECUTABLE = 0o755
_COMPILE_SECONDS = 600
_FETCH_SECONDS = 1200
_HINT = "get a C compiler with: apt-get install gcc libc6-dev (or: pip install ziglang)"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler and the arguments that make it compile for one architecture."""

    name: str
    command: tuple[str, ...]


def host_architecture() -> str:
    machine = platform.machine()
    if architecture := {name: key for key, name in MACHINES.items()}.get(machine):
        return architecture
    raise SetupError(
        f"netmgr does not run on {machine}; it runs on {' and '.join(MACHINES.values())}"
    )


def launcher(architecture: str | None = None) -> Path:
    """The launcher for an architecture (default: this machine's), built unless it is current."""
    chosen = architecture or host_architecture()
    path = BINARIES / f"netmgr-cni-{chosen}"
    if not is_current(path):
        build(path, chosen)
    return path


def is_current(path: Path) -> bool:
    """Whether `path` is a launcher built from the source as it is now."""
    try:
        return MARK + digest().encode() in path.read_bytes()
    except OSError:
        return False


def state(architecture: str) -> str:
    """Whether the launcher for an architecture is here: current, of another source, or absent."""
    path = BINARIES / f"netmgr-cni-{architecture}"
    if is_current(path):
        return "current"
    return "of another source" if path.exists() else "absent"


def digest() -> str:
    """Identifies the present source and flags."""
    sources = b"".join(part.read_bytes() for part in PARTS)
    return hashlib.sha256(sources + " ".join(FLAGS).encode()).hexdigest()[:32]


def build(target: Path, architecture: str, compilers: Iterator[Compiler] | None = None) -> str:
    """Compile the launcher to `target` with the first compiler that can; returns its name.

    Raises a SetupError that says how to get a compiler if none can.
    """
    if architecture not in MACHINES:
        raise SetupError(f"netmgr does not run on {architecture!r}; choose {' or '.join(MACHINES)}")
    failures = []
    durable.make_folder(target.parent)
    with tempfile.TemporaryDirectory() as scratch:
        # Compiled aside: a runtime may be executing the launcher at `target`, and the kernel lets
        # no program that runs be written to (ETXTBSY).
        compiled = Path(scratch) / target.name
        for compiler in compilers or available(architecture):
            if not (failure := _compile(compiler.command, compiled)):
                durable.write(target, compiled.read_bytes(), _EXECUTABLE)
                return compiler.name
            # All are reported: which one should have worked depends on the machine.
            failures.append(f"{compiler.name}: {failure}")
    raise SetupError(
        f"the launcher for {architecture} cannot be compiled; {_HINT}", "\n".join(failures)
    )


def available(architecture: str) -> Iterator[Compiler]:
    """Compilers to try, best first."""
    machine = MACHINES[architecture]
    names = [f"{machine}-linux-gnu-gcc"]
    if architecture == host_architecture():
        names = ["cc", "gcc", "clang", *names]
    for name in names:
        try:
            yield Compiler(name, (programs.locate(name, name),))
        except SetupError:
            continue
    # Only when its turn comes: it has 411 MB.
    _fetch_ziglang()
    yield Compiler(
        "ziglang", (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl")
    )


def _compile(command: Sequence[str], target: Path) -> str:
    """Compile to `target`; returns why it failed, empty if it did not."""
    definition = f'-DSOURCE_DIGEST="{digest()}"'
    # ziglang keeps its cache below HOME, which a service manager may not set.
    environment = {"HOME": str(Path.home()), **os.environ}
    command = (*command, *FLAGS, definition, "-o", str(target), str(SOURCE))
    try:
        outcome = programs.run(command, env=environment, timeout=_COMPILE_SECONDS)
    except programs.TimedOut:
        return f"did not end within {_COMPILE_SECONDS} s"
    if outcome.returncode == 0:
        return ""
    return outcome.stderr.decode(errors="replace").strip() or "failed"


def _fetch_ziglang() -> None:
    if importlib.util.find_spec("ziglang") is not None:
        return
    if not ZIGLANG_PIN.exists():  # installed from a wheel, far from the repository
        raise SetupError(f"there is no C compiler here; {_HINT}")
    # With hashes, since a compiler makes what runs as root on every node.
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes")
    command = (*pip, "--requirement", str(ZIGLANG_PIN))
    outcome = programs.run(command, timeout=_FETCH_SECONDS)
    if outcome.returncode != 0:
        raise SetupError(
            f"there is no C compiler here, and ziglang cannot be fetched; {_HINT}",
            outcome.stderr.decode(errors="replace").strip()[-1000:],
        )
    # The import system caches what directories contain, and would not find the new package.
    importlib.invalidate_caches()


def main() -> int:
    """Build the launcher for this machine unless it is current; `make` runs this."""
    began = time.monotonic()
    try:
        before = is_current(BINARIES / f"netmgr-cni-{host_architecture()}")
        path = launcher()
    except NetmgrError as error:
        sys.stderr.writelines(f"{text}\n" for text in (error.message, error.details) if text)
        return error.exit_code
    if not before:
        seconds, size = time.monotonic() - began, path.stat().st_size // 1024
        sys.stdout.write(f"built {path.name} in {seconds:.1f} s ({size} KiB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
