"""Installs the CNI plugin where a container runtime looks for it, and removes exactly that again.

Each file comes by rename, so that a runtime may be running. A manifest beside the launcher lists
what was installed. A file that is in no manifest, or was edited since, belongs to somebody else and
stays; so does a network configuration to which plugins were added, as long as it still runs ours.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cni import build, runtimes
from cni.installed import Record, networks, record_path
from cni.request import MOST_WAIT_SECONDS, NAME
from cni.results import SUPPORTED_VERSIONS, Json
from cni.runtime_config import CAPABILITIES
from netmgr import durable, programs
from netmgr.errors import SetupError, StateError, of_system

# The newest version that containerd 1.6 and podman 4.3 (libcni 1.1) decode results of.
DEFAULT_VERSION = "1.0.0"

PORTMAP, BANDWIDTH = "portmap", "bandwidth"
"""The reference plugins that carry out pods' hostPort and bandwidth annotations."""

# What may follow our plugin, in this order, and the capability by which it gets its arguments.
_CHAINED = {PORTMAP: "portMappings", BANDWIDTH: "bandwidth"}

_PACKAGES = "the package containernetworking-plugins (Debian) or kubernetes-cni (Kubernetes)"
_VERSION_SECONDS = 10
_UNINSTALLED = ".uninstalled"
_SOCKET_PATH_BYTES = 107  # sun_path is 108 bytes and holds the closing NUL
_MANIFEST_VERSION = 1
_EXECUTABLE, _PLAIN = 0o755, 0o644


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the plugin is installed, and how it is configured.

    Attributes:
        network: name of the CNI network, as in node.yaml.
        name: file name of the plugin, and so the conflist's `type`.
        cni_version: the one version of the conflist. Without it, runtimes that know
            `cniVersions` (libcni 1.2) use 1.1.0 with GC and STATUS, if every chained plugin has it
            as well, and older ones 1.0.0.
        portmap: whether `portmap`, for pods' hostPort, follows in the chain. Default: whether
            `bin_dir` has it.
        bandwidth: whether `bandwidth`, for pods' bandwidth annotations, follows as well.
        disable_gc: whether runtimes are to call no GC (CNI 1.1.0, `disableGC`): each
            lists its own pods as valid, and those of another on the node would be detached.
        wait: seconds that an ADD waits for an agent that is being replaced. Default: 10.
        boot_rules: where systemd-tmpfiles has its rules. With it, a boot removes the conflist
            before a runtime starts, so that it announces no plugin whose agent does not serve yet.
    """

    bin_dir: Path
    conf_dir: Path
    run_dir: Path = Path("/run/netmgr")
    state_dir: Path = Path("/var/lib/netmgr")
    network: str = "netmgr"
    name: str = "netmgr"
    cni_version: str | None = None
    portmap: bool | None = None
    bandwidth: bool = False
    disable_gc: bool = False
    wait: int | None = None
    boot_rules: Path | None = None

    def __post_init__(self) -> None:
        for key in ("network", "name"):
            if not NAME.fullmatch(getattr(self, key)):
                raise SetupError(
                    f"{key} {getattr(self, key)!r}: must be letters, digits, '_', '.' and '-'"
                )
        for key in ("bin_dir", "conf_dir", "run_dir", "state_dir"):
            path = getattr(self, key)
            if not path.is_absolute() or "\n" in str(path):
                raise SetupError(f"{key} {str(path)!r}: must be an absolute path")
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_BYTES:
            raise SetupError(
                f"run_dir {self.run_dir}: is too long for a socket ({_SOCKET_PATH_BYTES} bytes "
                "with its name)"
            )
        self._find_chained()
        if self.wait is not None and not 0 <= self.wait <= MOST_WAIT_SECONDS:
            raise SetupError(f"wait {self.wait}: must be 0 to {MOST_WAIT_SECONDS} seconds")
        if self.cni_version is not None and self.cni_version not in SUPPORTED_VERSIONS:
            raise SetupError(
                f"CNI version {self.cni_version!r}: choose one of {', '.join(SUPPORTED_VERSIONS)}"
            )

    def _find_chained(self) -> None:
        for path in (self.bin_dir / plugin for plugin in self.chained):
            if not path.exists():
                raise SetupError(f"{path}: there is no such plugin; it comes with {_PACKAGES}")

    @property
    def chained(self) -> list[str]:
        """The plugins that the conflist has behind ours."""
        portmap = (self.bin_dir / PORTMAP).exists() if self.portmap is None else self.portmap
        wanted = {PORTMAP: portmap, BANDWIDTH: self.bandwidth}
        return [plugin for plugin in _CHAINED if wanted[plugin]]

    @property
    def launcher(self) -> Path:
        return self.bin_dir / self.name

    @property
    def paths_file(self) -> Path:
        """The file that names the agent's socket and spool to the launcher."""
        return self.bin_dir / f"{self.name}.path"

    @property
    def conflist(self) -> Path:
        """The network configuration; runtimes take the first in the order of names."""
        return self.conf_dir / f"10-{self.name}.conflist"

    @property
    def boot_rule(self) -> Path | None:
        """The file that has a boot remove the conflist."""
        return self.boot_rules / f"{self.name}-cni.conf" if self.boot_rules else None

    @property
    def record(self) -> Path:
        """The file by which the agent checks that runtimes find the plugin."""
        return record_path(self.state_dir)

    @property
    def socket(self) -> Path:
        return self.run_dir / "cni.sock"

    @property
    def spool(self) -> Path:
        """Where the launcher keeps DELs while the agent is away."""
        return self.state_dir / "spool"


@dataclass
class Manifest:
    """Files that are ours, each with the digests (SHA-256) it may have, and directories we made."""

    path: Path
    files: dict[str, list[str]] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, bin_dir: Path, name: str) -> Manifest:
        """The manifest of the plugin `name`; empty if it is missing."""
        path = bin_dir / f"{name}.installed"
        return durable.read(path, lambda text: cls(path, *_listed(text))) or cls(path)

    def write(self) -> None:
        document = {
            "version": _MANIFEST_VERSION,
            "files": self.files,
            "directories": self.directories,
        }
        durable.write(self.path, json.dumps(document, indent=2).encode() + b"\n", _PLAIN)

    def owns(self, path: Path) -> bool:
        """Whether the file at `path` is as we left it."""
        return not path.is_symlink() and _digest(path.read_bytes()) in self.files.get(str(path), [])


def _listed(text: str) -> tuple[dict[str, list[str]], list[str]]:
    """Files and directories that a manifest's text names."""
    document = json.loads(text)
    if document["version"] != _MANIFEST_VERSION:
        raise ValueError(f"another version of netmgr wrote it (version {document['version']!r})")
    files, directories = document["files"], document["directories"]
    lists = [*files.values(), directories] if isinstance(files, dict) else [None]
    if not all(
        isinstance(strings, list) and all(isinstance(string, str) for string in strings)
        for strings in lists
    ):
        raise TypeError("it is not a manifest of an installation")
    return files, directories


def conflist(plan: Installation) -> Json:
    # Before libcni 1.2, runtimes read `cniVersion` alone.
    versions: Json = {"cniVersion": plan.cni_version or DEFAULT_VERSION}
    if plan.cni_version is None:
        versions["cniVersions"] = _versions(plan)
    if plan.disable_gc:
        versions["disableGC"] = True
    # What a later plugin does is not done twice.
    others = {_CHAINED[plugin] for plugin in plan.chained}
    own = {name: True for name in CAPABILITIES if name not in others}
    plugins: list[Json] = [{"type": plan.name, "capabilities": own}]
    if plan.wait is not None:
        plugins[0]["wait"] = plan.wait
    plugins += [
        {"type": plugin, "capabilities": {_CHAINED[plugin]: True}} for plugin in plan.chained
    ]
    return versions | {"name": plan.network, "plugins": plugins}


def _versions(plan: Installation) -> list[str]:
    """The versions that the whole chain has: a runtime asks all plugins of it in the newest one."""
    # containerd 2 asks for STATUS where 1.1.0 is offered. A plugin that does not know the verb, as
    # Debian 12's portmap, fails it, and the Node would stay NotReady for ever.
    newer = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index(DEFAULT_VERSION) + 1 :]
    common = set(newer).intersection(*(_versions_of(plan.bin_dir / name) for name in plan.chained))
    return [DEFAULT_VERSION, *(version for version in newer if version in common)]


def _versions_of(plugin: Path) -> list[str]:
    """What a plugin answers to VERSION; nothing if it does not run."""
    environment = {"CNI_COMMAND": "VERSION"}
    try:
        outcome = programs.run((plugin,), env=environment, timeout=_VERSION_SECONDS)
        return [str(version) for version in json.loads(outcome.stdout)["supportedVersions"]]
    except (OSError, programs.TimedOut, ValueError, KeyError, TypeError):
        return []


def install(
    plan: Installation, launcher: Path | bytes | None = None, *, force: bool = False
) -> list[Path]:
    """Install or update the plugin; returns the files that changed, none if all was in place.

    Args:
        plan: where to and what for.
        launcher: the program to install, or where it is; default: the one for this machine, built
            if need be.
        force: replace files that are not ours.

    Raises:
        SetupError: a foreign file is in the way, or a directory cannot be written.
    """
    if not isinstance(launcher, bytes):
        launcher = (launcher or build.launcher()).read_bytes()
    settings = runtimes.settings(Path("/"))
    record = Record(plan.bin_dir, plan.conf_dir, plan.name, plan.network, settings)
    wanted = {
        plan.launcher: (launcher, _EXECUTABLE),
        plan.paths_file: (f"{plan.socket}\n{plan.spool}\n".encode(), _PLAIN),
        plan.record: (record.encoded(), 0o600),
        plan.conflist: (json.dumps(conflist(plan), indent=2).encode() + b"\n", _PLAIN),
    }
    manifest = Manifest.read(plan.bin_dir, plan.name)
    former = _former(plan)
    manifest.files = {**former, **manifest.files}
    if not force and _is_extended(manifest, plan.conflist, plan.name, plan.network):
        del wanted[plan.conflist]
    elif plan.boot_rule:
        # Before the conflist. An extended one is kept, also at a boot.
        # A rule of tmpfiles.d(5) that removes it at a boot, and at no other time. `%` would begin a
        # specifier there.
        quoted = json.dumps(str(plan.conflist)).replace("%", "%%")
        rule = f"# Of netmgr: it is written again once the agent serves.\nr! {quoted}\n"
        wanted = {plan.boot_rule: (rule.encode(), _PLAIN), **wanted}
    # The record is in the agent's own directory, and says where the last installation was.
    contents = {path: content for path, (content, _) in wanted.items() if path != plan.record}
    try:
        if not force:
            _refuse_foreign(manifest, contents)
        return _put(plan, manifest, wanted, former)
    except OSError as error:
        raise of_system(error) from None


def _former(plan: Installation) -> dict[str, list[str]]:
    """Files of the last installation, if that was in another directory."""
    # They stay until the next installation: a runtime whose configuration has changed looks in the
    # former directory until it is restarted.
    try:
        record = durable.read(plan.record, Record.parse)
    except StateError:
        return {}  # a damaged record is replaced
    if record is None or record.bin_dir == plan.bin_dir.resolve():
        return {}
    manifest = Manifest.read(record.bin_dir, record.name)
    if not manifest.path.exists():
        return {}
    return {**manifest.files, str(manifest.path): [_digest(manifest.path.read_bytes())]}


def remarks(plan: Installation) -> list[str]:
    """What an administrator should know about an installation that was just made."""
    notes = []
    manifest = Manifest.read(plan.bin_dir, plan.name)
    if _is_extended(manifest, plan.conflist, plan.name, plan.network):
        notes.append(
            f"{plan.conflist}: was extended since netmgr installed it, and is kept as it is"
        )
    elif plan.portmap is None and PORTMAP not in plan.chained:
        notes.append(
            f"{plan.bin_dir} has no {PORTMAP} plugin, so pods' hostPort does not work; it comes "
            f"with {_PACKAGES}; then install again"
        )
    if (first := networks(plan.conf_dir)[0]) != plan.conflist:
        notes.append(
            f"the runtime takes {first}, not netmgr's: it sorts before {plan.conflist.name}; "
            "move it away once netmgr shall give pods their network"
        )
    return notes


def _is_extended(manifest: Manifest, path: Path, name: str, network: str | None = None) -> bool:
    """Whether the network configuration was ours, was edited, and still runs the plugin `name`."""
    try:
        if str(path) not in manifest.files or manifest.owns(path):
            return False
        document = json.loads(path.read_bytes())
        types = [plugin["type"] for plugin in document["plugins"]]
        return name in types and network in (None, document["name"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _refuse_foreign(manifest: Manifest, contents: Mapping[Path, bytes]) -> None:
    for path, content in contents.items():
        if not os.path.lexists(path) or manifest.owns(path):
            continue
        # A symbolic link is somebody else's, wherever it leads.
        present = b"" if path.is_symlink() else path.read_bytes()
        # Ours, though the manifest is gone: exactly what we write, or a launcher of any version.
        if present != content and build.MARK not in present:
            is_edited = str(path) in manifest.files
            reason = "was edited since netmgr installed it" if is_edited else "is not netmgr's"
            raise SetupError(
                f"{path}: {reason}; move it away, or install with --force to replace it"
            )


def _put(
    plan: Installation,
    manifest: Manifest,
    wanted: Mapping[Path, tuple[bytes, int]],
    former: Mapping[str, list[str]],
) -> list[Path]:
    rules = [plan.boot_rules] if plan.boot_rules else []
    for directory in (*rules, plan.bin_dir, plan.conf_dir, plan.spool):
        manifest.directories += _make_directory(directory, manifest.directories)
    # Whoever could write there could have any pod's network deleted.
    plan.spool.chmod(0o700)
    durable.close_to_others(plan.state_dir.resolve())
    # Unchanged files are not written: a runtime reloads its networks at every change of the
    # directory.
    changed = [path for path, (content, _) in wanted.items() if not durable.holds(path, content)]
    final = {**former, **{str(path): [_digest(content)] for path, (content, _) in wanted.items()}}
    if plan.conflist not in wanted:
        # Extended by an administrator. It stays in the manifest, so that `uninstall` finds it.
        final[str(plan.conflist)] = manifest.files[str(plan.conflist)]
    if not changed and manifest.files == final:
        return []
    obsolete = [Path(path) for path in manifest.files if path not in final]
    # Before the first file, and with old and new digests until all are in place: an interrupted
    # installation stays recognisable, and can be finished or removed.
    manifest.files = {
        path: [*manifest.files.get(path, []), *final.get(path, [])]
        for path in {**manifest.files, **final}
    }
    manifest.write()
    # In the order of `wanted`, the network configuration last: as soon as a runtime finds that, it
    # calls the plugin.
    for path in changed:
        durable.write(path, *wanted[path])
    _remove(manifest, obsolete)
    manifest.files = final
    manifest.write()
    return changed


def uninstall(bin_dir: Path, name: str = "netmgr") -> tuple[list[Path], list[Path]]:
    """Remove what `install` put there: (files removed, files left because they were edited since).

    An extended network configuration is renamed to `….uninstalled`.

    Raises:
        SetupError: no plugin of this name was installed there, or a file cannot be removed.
    """
    manifest = Manifest.read(bin_dir, name)
    if not manifest.path.exists():
        raise SetupError(
            f"{manifest.path}: there is no such file, so netmgr installed nothing there"
        )
    try:
        extended = [
            path for path in map(Path, manifest.files) if _is_extended(manifest, path, name)
        ]
        for path in extended:
            # Runtimes do not read the new name: without its plugin it would fail every pod.
            path.replace(uninstalled_name(path))
        # The other way round: the runtime must not find a configuration without its plugin.
        removed, left = _remove(manifest, [Path(path) for path in reversed(manifest.files)])
        removed = extended + removed
        if left:
            manifest.files = {str(path): manifest.files[str(path)] for path in left}
            manifest.write()
            return removed, left
        manifest.path.unlink()
    except OSError as error:
        raise of_system(error) from None
    # Innermost first; a directory that others use by now is not empty, and stays.
    for directory in reversed(manifest.directories):
        _remove_if_empty(Path(directory))
    return removed, left


def uninstalled_name(path: Path) -> Path:
    """What an extended network configuration is called after `uninstall`."""
    return path.with_name(path.name + _UNINSTALLED)


def _remove(manifest: Manifest, paths: list[Path]) -> tuple[list[Path], list[Path]]:
    present = [path for path in paths if os.path.lexists(path)]
    removed = [path for path in present if manifest.owns(path)]
    for path in removed:
        path.unlink()
    return removed, [path for path in present if path not in removed]


def _make_directory(directory: Path, known: list[str]) -> list[str]:
    """Make `directory` and its parents; returns those that were missing, outermost first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    return [str(path) for path in reversed(missing) if str(path) not in known]


def _remove_if_empty(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
