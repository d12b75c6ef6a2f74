"""Where the container runtimes of this machine look for CNI plugins and for network configurations.

Distributions differ: upstream's default is /opt/cni/bin, Debian's containerd has /usr/lib/cni in
its config.toml, Fedora's CRI-O /usr/libexec/cni. A plugin in another directory fails every pod with
`failed to find plugin "netmgr" in path […]`.

`containerd config dump` is used, because how containerd joins its drop-in files depends on the
release: 1.x replaces a plugin's whole section, 2.x merges key by key. CRI-O's files are read:
/etc/crio/crio.conf, then /etc/crio/crio.conf.d by name, each key overriding (crio.conf.d(5)).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netmgr import programs
from netmgr.errors import SetupError

DEFAULT_BIN_DIR = Path("/opt/cni/bin")
DEFAULT_CONF_DIR = Path("/etc/cni/net.d")

CRIO_CONFIG = Path("/etc/crio/crio.conf")

_CONTAINERD_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""The plugin with the `cni` table: in configuration version 3 (containerd 2), then version 2."""

_DUMP_SECONDS = 20
_ADVICE = "name the directory with --bin-dir and --conf-dir"

Table = Mapping[str, Any]
"""A table of a TOML document."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime, the first directory of each kind that it searches, and how we know."""

    name: str
    bin_dir: Path
    conf_dir: Path
    source: str


def found() -> list[Runtime]:
    """The container runtimes of this machine.

    Raises:
        SetupError: a runtime's configuration cannot be read; the message names it.
    """
    return [*_containerd(), *_crio(CRIO_CONFIG)]


def directories(bin_dir: Path | None, conf_dir: Path | None) -> tuple[Path, Path, str]:
    """Where plugin and configuration go, and why: as asked for, else as the runtimes read.

    Raises:
        SetupError: two runtimes look in different places and no argument decides, or a runtime's
            configuration cannot be read.
    """
    if bin_dir is not None and conf_dir is not None:
        return bin_dir, conf_dir, ""
    return chosen(found(), bin_dir, conf_dir)


def chosen(
    runtimes: list[Runtime], bin_dir: Path | None, conf_dir: Path | None
) -> tuple[Path, Path, str]:
    """As `directories`, with the runtimes that there are."""
    if not runtimes:
        return (
            bin_dir or DEFAULT_BIN_DIR,
            conf_dir or DEFAULT_CONF_DIR,
            "no container runtime's configuration is here",
        )
    # One directory is installed into, so that runtimes that differ need a person's choice.
    first, *others = runtimes
    for other in others:
        differs = (bin_dir is None and other.bin_dir != first.bin_dir) or (
            conf_dir is None and other.conf_dir != first.conf_dir
        )
        if differs:
            raise SetupError(f"{_looks(first)}, {_looks(other)}; {_ADVICE}")
    return bin_dir or first.bin_dir, conf_dir or first.conf_dir, "; ".join(map(_looks, runtimes))


def _looks(runtime: Runtime) -> str:
    return f"{runtime.name} looks in {runtime.bin_dir} and {runtime.conf_dir} ({runtime.source})"


def _containerd() -> Iterator[Runtime]:
    try:
        program = programs.locate("containerd", "containerd")
    except SetupError:
        return
    command = (program, "config", "dump")
    try:
        done = programs.run(command, timeout=_DUMP_SECONDS)
    except (OSError, programs.TimedOut) as error:
        raise SetupError(f"{' '.join(command)}: {error}; {_ADVICE}") from None
    if done.returncode != 0:
        raise SetupError(
            f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}; {_ADVICE}"
        )
    yield containerd_of(
        done.stdout.decode(errors="replace"), " ".join(("containerd", *command[1:]))
    )


def containerd_of(dump: str, source: str) -> Runtime:
    """Read a whole containerd configuration, of version 2 or 3.

    Raises:
        SetupError: it is not TOML.
    """
    plugins = _table(_parsed(dump, source), "plugins")
    cni = next(
        (
            _table(plugins[name], "cni")
            for name in _CONTAINERD_SECTIONS
            if "cni" in plugins.get(name, {})
        ),
        {},
    )
    # containerd 2.1 has a list, and keeps the older single key beside it as long as it is set.
    listed = [cni["bin_dir"]] if cni.get("bin_dir") else cni.get("bin_dirs", [])
    return _runtime("containerd", listed, cni.get("conf_dir"), source)


def _crio(path: Path) -> Iterator[Runtime]:
    files = [path, *sorted((path.parent / f"{path.name}.d").glob("*"))]
    present = [file for file in files if file.is_file()]
    if not present:
        return
    settings: dict[str, Any] = {}
    deciding = present[0]
    for file in present:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"{file}: {error}; {_ADVICE}") from None
        found = _table(_table(_parsed(text, str(file)), "crio"), "network")
        if found.keys() & {"plugin_dirs", "plugin_dir", "network_dir"}:
            deciding = file
        # Later files win key by key, crio.conf.d(5).
        settings |= found
    # plugin_dir is the older key.
    listed = settings.get("plugin_dirs") or [settings.get("plugin_dir")]
    yield _runtime("CRI-O", listed, settings.get("network_dir"), str(deciding))


def _runtime(name: str, bin_dirs: object, conf_dir: object, source: str) -> Runtime:
    first = bin_dirs[0] if isinstance(bin_dirs, list) and bin_dirs else None
    return Runtime(name, _path(first, DEFAULT_BIN_DIR), _path(conf_dir, DEFAULT_CONF_DIR), source)


def _path(value: object, default: Path) -> Path:
    return Path(value) if isinstance(value, str) and value.startswith("/") else default


def _parsed(text: str, source: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{source}: {error}; {_ADVICE}") from None


def _table(parent: Table, key: str) -> Table:
    child = parent.get(key)
    return child if isinstance(child, dict) else {}
