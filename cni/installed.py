"""What the runtimes of a node need to find netmgr, checked while the agent runs.

Without launcher and network configuration where a runtime looks, every pod fails and the agent is
never asked, so that nothing else could notice. `install` records where it put them, in the agent's
state directory.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cni import runtimes
from netmgr import durable
from netmgr.errors import StateError

NETWORK_SUFFIXES = (".conf", ".conflist", ".json")
"""What libcni and containerd read in the directory of networks."""

_RECORD = "plugin.json"
_HOST = Path("/host")
_EXECUTABLE = 0o111
_AGAIN = "install again (netmgr cni install; on Kubernetes, delete the agent's pod)"


@dataclass(frozen=True, slots=True)
class Record:
    """An installation: where it is, and what runtimes' configurations said about that then."""

    bin_dir: Path
    conf_dir: Path
    name: str
    network: str
    settings: runtimes.Settings

    def encoded(self) -> bytes:
        document = {
            # Resolved: in a container, an absolute link would lead elsewhere.
            "bin_dir": str(self.bin_dir.resolve()),
            "conf_dir": str(self.conf_dir.resolve()),
            "name": self.name,
            "network": self.network,
            "settings": self.settings,
        }
        return json.dumps(document, indent=2).encode() + b"\n"

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read what `encoded` wrote; raises ValueError, KeyError or TypeError."""
        document = json.loads(text)
        settings = document["settings"]
        strings = [document[key] for key in ("bin_dir", "conf_dir", "name", "network")]
        if not (
            all(isinstance(string, str) for string in strings)
            and all(string.startswith("/") for string in strings[:2])
            and strings[2]
            and "/" not in strings[2]
            and not any("\0" in string for string in strings)
            and all(isinstance(mapping, dict) for mapping in [settings, *dict(settings).values()])
        ):
            raise TypeError("it is no record of an installation")
        # Raises for text that is none, which JSON can hold.
        "".join(strings).encode()
        bin_dir, conf_dir, name, network = strings
        return cls(Path(bin_dir), Path(conf_dir), name, network, settings)


def record_path(state_dir: Path) -> Path:
    """Where the installation for the agent with this state directory is recorded."""
    return state_dir / _RECORD


def check(state_dir: Path) -> None:
    """StateError, with what to do, unless runtimes find the plugin or `install` put none here."""
    try:
        record = durable.read(record_path(state_dir), Record.parse)
    except StateError as error:
        raise StateError(f"{error.message}; {_AGAIN}") from None
    # A container has the node's directories below /host.
    root = _HOST if (_HOST / "etc").is_dir() else Path("/")
    if record is not None and (faults := [*problems(record, root)]):
        raise StateError("; ".join(faults))


def problems(record: Record, root: Path) -> Iterator[str]:
    """Why a runtime would not ask netmgr, one text for each reason. Files are below `root`."""
    hidden = [path for path in (record.bin_dir, record.conf_dir) if not _is_visible(path, root)]
    for path in hidden:
        yield f"{path} is not visible in this container; mount it, read-only, at {root}{path}"
    if hidden:
        return
    launcher = record.bin_dir / record.name
    for path in (launcher, launcher.with_name(f"{record.name}.path")):
        if not _is_file(runtimes.below(root, path)):
            yield f"{path} is missing; {_AGAIN}"
    program = runtimes.below(root, launcher)
    if _is_file(program) and not program.stat().st_mode & _EXECUTABLE:
        yield f"{launcher} is not executable; {_AGAIN}"
    yield from _network_problems(record, root)
    yield from _setting_problems(record, root)


def networks(conf_dir: Path) -> list[Path]:
    """The network configurations of a directory; runtimes take the first."""
    if _kind(conf_dir) != stat.S_IFDIR:
        return []
    paths = [path for path in conf_dir.iterdir() if path.suffix in NETWORK_SUFFIXES]
    # As libcni does: a link that leads nowhere is a configuration, which cannot be loaded.
    return sorted(path for path in paths if not path.is_dir())


def _network_problems(record: Record, root: Path) -> Iterator[str]:
    conflist = record.conf_dir / f"10-{record.name}.conflist"
    try:
        document = json.loads(runtimes.below(root, conflist).read_bytes())
        # `fspath` raises TypeError for a type that is no text.
        types = [os.fspath(plugin["type"]) for plugin in document["plugins"]]
    except OSError as error:
        yield f"{conflist}: {error.strerror}; {_AGAIN}"
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        yield f"{conflist} is not a network configuration; move it away and {_AGAIN}"
        return
    if record.name not in types or document.get("name") != record.network:
        yield f"{conflist} does not run {record.name} any more; move it away and {_AGAIN}"
    for plugin in types:
        if not _is_file(runtimes.below(root, record.bin_dir / plugin)):
            yield f"{conflist} runs {plugin}, but {record.bin_dir} has no such plugin"
    yield from _choice_problems(record, root, conflist)


def _choice_problems(record: Record, root: Path, conflist: Path) -> Iterator[str]:
    """Why a runtime takes another network."""
    if (selected := _selected(root)) is not None:
        path, network = selected
        if network != record.network:
            yield f"{path}: {runtimes.DEFAULT_NETWORK} is {network}; set it to {record.network}"
        return
    # Empty if another program removed them a moment ago.
    first = next(iter(networks(runtimes.below(root, record.conf_dir))), conflist)
    # A meta-plugin, as Multus, sorts first on purpose, and names the network that it delegates to.
    if first.name == conflist.name:
        return
    text = first.read_text(errors="replace") if first.is_file() else ""
    names = (f'"{record.network}"', f'"{record.name}"', conflist.name)
    if not any(name in text for name in names):
        yield (
            f"the runtime takes {record.conf_dir / first.name}, not netmgr's: it sorts before "
            f"{conflist.name}; drain the node, and move away the one that is not meant"
        )


def _selected(root: Path) -> tuple[str, object] | None:
    """The network that a runtime takes by its name, and the file that says so: the last one."""
    key = runtimes.DEFAULT_NETWORK
    saying = [
        (path, setting[key]) for path, setting in runtimes.settings(root).items() if key in setting
    ]
    return saying[-1] if saying and saying[-1][1] else None


def _setting_problems(record: Record, root: Path) -> Iterator[str]:
    wanted = {str(record.bin_dir), str(record.conf_dir), record.network}
    now = runtimes.settings(root)
    for path in sorted({*now, *record.settings}):
        setting, before = now.get(path, {}), record.settings.get(path, {})
        changed = {key for key in {*setting, *before} if setting.get(key) != before.get(key)}
        # A runtime that is configured for our directories later finds the plugin as well.
        if not all(_names_one_of(runtimes.in_effect(setting, key), wanted) for key in changed):
            yield f"{path} has changed what it says about CNI plugins since then; {_AGAIN}"


def _names_one_of(value: object, directories: set[str]) -> bool:
    named = value if isinstance(value, list) else [value]
    return any(isinstance(name, str) and os.path.normpath(name) in directories for name in named)


def _is_visible(path: Path, root: Path) -> bool:
    """Whether the top directory of a path is there: then a missing path is missing."""
    return root == Path("/") or _kind(runtimes.below(root, Path(*path.parts[:2]))) == stat.S_IFDIR


def _is_file(path: Path) -> bool:
    return _kind(path) == stat.S_IFREG


def _kind(path: Path) -> int:
    """The kind of file that is there; 0 for none, also for a name that no file system takes."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return 0
