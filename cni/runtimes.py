"""Where the container runtimes of this machine look for CNI plugins and for network configurations.

Distributions differ: /opt/cni/bin is upstream's default, /usr/lib/cni Debian's, /usr/libexec/cni
Fedora's. A plugin elsewhere fails every pod with `failed to find plugin "netmgr" in path […]`.

containerd is asked. CRI-O's files are read, crio.conf and then crio.conf.d by name; so are the
single files that k3s, RKE2 and MicroK8s generate for containerds of their own.

`settings` shows what all these files say about CNI, without joining them: an agent, which starts no
program, notices by it that an answer may have changed.
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netmgr import programs
from netmgr.errors import SetupError

DEFAULT_BIN_DIR = Path("/opt/cni/bin")
DEFAULT_CONF_DIR = Path("/etc/cni/net.d")

CRIO_CONFIG = Path("/etc/crio/crio.conf")

_CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
# Complete configurations of a distribution's containerd, which is in no PATH.
_GENERATED = {
    "k3s": Path("/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
    "RKE2": Path("/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
    "MicroK8s": Path("/var/snap/microk8s/current/args/containerd.toml"),
}

# The plugin with the `cni` table: in configuration version 3 (containerd 2), then version 2.
_CONTAINERD_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")

DEFAULT_NETWORK = "cni_default_network"
"""CRI-O's key for the network that it takes instead of the first in its directory."""

_KEYS = (
    "bin_dir",
    "bin_dirs",
    "conf_dir",
    "plugin_dir",
    "plugin_dirs",
    "network_dir",
    DEFAULT_NETWORK,
)
_CONTAINERD_DEFAULTS = {
    "bin_dir": str(DEFAULT_BIN_DIR),
    "bin_dirs": [str(DEFAULT_BIN_DIR)],
    "conf_dir": str(DEFAULT_CONF_DIR),
}
_DUMP_SECONDS = 20
_MOST_FILES = 64
_ADVICE = "name the directory with --bin-dir and --conf-dir"

Table = Mapping[str, Any]
"""A table of a TOML document."""

Settings = dict[str, dict[str, Any]]
"""The keys about CNI of each file that has any."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime, the first directory of each kind that it searches, and how we know."""

    name: str
    bin_dir: Path
    conf_dir: Path
    source: str


def detected() -> list[Runtime]:
    """The container runtimes of this machine; SetupError if a configuration cannot be read."""
    return [*_containerd(), *_generated(), *_crio(CRIO_CONFIG)]


def settings(root: Path) -> Settings:
    """What the runtimes' files below `root` say about CNI, by file."""
    settings_by_file: Settings = {}
    waiting = [_CONTAINERD_CONFIG, *_GENERATED.values(), *_crio_files(CRIO_CONFIG, root)]
    seen: set[Path] = set()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop(0)
        if path in seen or not below(root, path).is_file():
            continue
        seen.add(path)
        document = _read(below(root, path))
        listed = {**_containerd_cni(document), **_table(_table(document, "crio"), "network")}
        if keys := {key: value for key, value in listed.items() if key in _KEYS}:
            settings_by_file[str(path)] = keys
        waiting += _imports(document, path.parent, root)
    return settings_by_file


def in_effect(setting: Mapping[str, Any], key: str) -> object:
    """A key of `settings`, or the runtime's default; None where that depends on its build."""
    return setting.get(key, _CONTAINERD_DEFAULTS.get(key))


def directories(bin_dir: Path | None, conf_dir: Path | None) -> tuple[Path, Path, str]:
    """Where plugin and configuration go, and why: as asked for, else as the runtimes read.

    Raises:
        SetupError: two runtimes look in different places and no argument decides, or a runtime's
            configuration cannot be read.
    """
    if bin_dir is not None and conf_dir is not None:
        return bin_dir, conf_dir, ""
    return chosen(detected(), bin_dir, conf_dir)


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
    # How it joins its drop-in files depends on the release: 1.x replaces a plugin's whole section,
    # 2.x merges key by key.
    command = (program, "config", "dump")
    try:
        done = programs.run(command, timeout=_DUMP_SECONDS)
    except (OSError, programs.TimedOut) as error:
        raise SetupError(f"{' '.join(command)}: {error}; {_ADVICE}") from None
    if done.returncode != 0:
        raise SetupError(
            f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}; {_ADVICE}"
        )
    yield containerd_of(done.stdout.decode(errors="replace"), "containerd config dump")


def containerd_of(dump: str, source: str) -> Runtime:
    """Read a whole containerd configuration, of version 2 or 3."""
    cni = _containerd_cni(_parsed(dump, source))
    # containerd 2.1 has a list, and keeps the older single key beside it as long as it is set.
    listed = [cni["bin_dir"]] if cni.get("bin_dir") else cni.get("bin_dirs", [])
    return _runtime("containerd", listed, cni.get("conf_dir"), source)


def _generated() -> Iterator[Runtime]:
    for name, path in _GENERATED.items():
        if path.is_file():
            yield replace(containerd_of(_text(path), str(path)), name=name)


def _containerd_cni(document: Table) -> Table:
    plugins = _table(document, "plugins")
    sections = [_table(plugins, name) for name in _CONTAINERD_SECTIONS]
    return next((_table(section, "cni") for section in sections if "cni" in section), {})


def _imports(document: Table, folder: Path, root: Path) -> Iterator[Path]:
    """The files that a configuration of containerd imports, by their paths below `root`."""
    listed = document.get("imports", [])
    for pattern in listed if isinstance(listed, list) else []:
        # A relative one is relative to the importing file's directory.
        absolute = str(folder / str(pattern)).lstrip("/")
        # No path has a NUL, and glob raises ValueError for one.
        if "\0" in absolute:
            continue
        # Path.glob would search all folders below for `**`, which is `*` to containerd.
        matches = glob.glob(absolute, root_dir=root, include_hidden=True)  # noqa: PTH207  see above
        yield from (Path("/") / path for path in sorted(matches))


def _crio_files(path: Path, root: Path) -> list[Path]:
    folder = path.parent / f"{path.name}.d"
    drop_ins = sorted(below(root, folder).glob("*"))
    return [path, *(folder / drop_in.name for drop_in in drop_ins)]


def _crio(path: Path) -> Iterator[Runtime]:
    present = [file for file in _crio_files(path, Path("/")) if file.is_file()]
    if not present:
        return
    settings: dict[str, Any] = {}
    deciding = present[0]
    for file in present:
        network = _table(_table(_read(file), "crio"), "network")
        if network.keys() & {"plugin_dirs", "plugin_dir", "network_dir"}:
            deciding = file
        # Later files win key by key, crio.conf.d(5).
        settings |= network
    # plugin_dir is the older key.
    listed = settings.get("plugin_dirs") or [settings.get("plugin_dir")]
    yield _runtime("CRI-O", listed, settings.get("network_dir"), str(deciding))


def _runtime(name: str, bin_dirs: object, conf_dir: object, source: str) -> Runtime:
    first = bin_dirs[0] if isinstance(bin_dirs, list) and bin_dirs else None
    return Runtime(name, _path(first, DEFAULT_BIN_DIR), _path(conf_dir, DEFAULT_CONF_DIR), source)


def _path(value: object, default: Path) -> Path:
    return Path(value) if isinstance(value, str) and value.startswith("/") else default


def below(root: Path, path: Path) -> Path:
    """An absolute path of a machine whose root directory is mounted here."""
    return root / str(path).lstrip("/")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: {error}; {_ADVICE}") from None


def _read(path: Path) -> Table:
    return _parsed(_text(path), str(path))


def _parsed(text: str, source: str) -> Table:
    try:
        return tomllib.loads(text)
    # ValueError: also of a number with more digits than Python converts.
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{source}: {error}; {_ADVICE}") from None


def _table(parent: Table, key: str) -> Table:
    child = parent.get(key)
    return child if isinstance(child, dict) else {}
