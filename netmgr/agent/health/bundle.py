"""A support archive of one node: what somebody who cannot log in there needs to know.

Nothing here starts a program but `journalctl` and the listing of legacy tables, which are left
out where they are not installed (in the image), and nothing is changed.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

import netmgr
from cni import installed
from cni.runtimes import DEFAULT_CONF_DIR
from netmgr import archive, durable, programs, sqlite_file
from netmgr.agent.core.recovery import boot_id
from netmgr.agent.health import doctor
from netmgr.api import client
from netmgr.archive import Archive, Part
from netmgr.dataplane import settings
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import KernelError, NetmgrError
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.xtables.variant import legacy_tables
from netmgr.prefixes import Family

SYSCTLS = ("ipv4/ip_forward", "ipv4/conf/*/*", "ipv6/conf/*/*", "ipv4/neigh/default/*")
SYSCTLS_OF_CONNECTIONS = ("netfilter/*", "nf_conntrack_max")
LOG_LINES, LOG_SECONDS, LOG_BYTES = 20_000, 60.0, 8 << 20
QUERY_SECONDS = 30.0
_UNIT = "netmgr-agent"
_LEGACY = {Family.V4: "iptables-legacy-save", Family.V6: "ip6tables-legacy-save"}


def collect(config: Path, logs: tuple[Path, ...] = (), *, redact: bool = False) -> Archive:
    """The archive for the node document at `config`, with the end of these log files."""
    try:
        document = loader.load(config, NodeDocument)
    except NetmgrError:
        document = doctor.assumed()
    parts = archive.collect(dict(_parts(config, document, logs)))
    if redact:
        parts = archive.redacted(parts, _names(document.run_dir))
    name = document.node.name
    return archive.packed(f"netmgr-{name}-{time.strftime('%Y%m%dT%H%M%S')}", parts)


def _parts(
    config: Path, document: NodeDocument, logs: tuple[Path, ...]
) -> Iterator[tuple[str, Part]]:
    socket, state_dir = document.run_dir / "ledger.sock", document.state_dir
    yield "versions.json", _versions
    yield "doctor.json", partial(_doctor, config)
    yield "documents/node.yaml", partial(_end_of, config)
    yield "documents/plugin.json", partial(_end_of, installed.record_path(state_dir))
    for path in installed.networks(_network_dir(state_dir)):
        yield f"documents/networks/{path.name}", partial(_end_of, path)
    for query in ("snapshot", "pods", "audit"):
        yield f"agent/{query}.json", partial(_answer, socket, query)
    yield "kernel/nftables.txt", _nftables
    for family, program in _LEGACY.items():
        if legacy_tables(family):
            yield f"kernel/{program}.txt", partial(_output, program, "iptables")
    yield "kernel/links.json", partial(_dumped, links="link", addresses="addr")
    yield "kernel/routes.json", partial(_dumped, routes="route")
    yield "kernel/sysctls.txt", _sysctls
    for name in ("ipam.sqlite", "ledger.sqlite"):
        yield f"state/{name}.json", partial(_database, state_dir / name)
    yield "state/files.txt", partial(_files, document)
    if shutil.which("journalctl", path=programs.SEARCH_PATH):
        command = ("journalctl", "systemd", "--no-pager", f"--unit={_UNIT}", f"--lines={LOG_LINES}")
        yield f"logs/{_UNIT}.log", partial(_output, *command)
    for path in logs:
        yield f"logs/{path.name}", partial(_end_of, path)


def _versions() -> str:
    release = Path("/etc/os-release")
    return _json(
        {
            "netmgr": netmgr.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "kernel": list(os.uname()),
            "boot_id": boot_id(),
            "release": release.read_text(encoding="utf-8") if release.exists() else "",
        }
    )


def _doctor(config: Path) -> str:
    by_check = doctor.examine(config)
    return _json(
        {check: [asdict(finding) for finding in findings] for check, findings in by_check.items()}
    )


def _answer(socket: Path, query: str) -> str:
    return _json(client.ask(socket, query, timeout=QUERY_SECONDS))


def _names(run_dir: Path) -> set[str]:
    """Pods and namespaces that the agent knows; any others are only in its log."""
    try:
        answer = client.ask(run_dir / "ledger.sock", "pods", timeout=QUERY_SECONDS)
    except NetmgrError:
        return set()
    rows = [*answer["pods"], *answer["attachments"]]
    return {row[key] for row in rows for key in ("namespace", "pod")}


def _network_dir(state_dir: Path) -> Path:
    try:
        record = durable.read(installed.record_path(state_dir), installed.Record.parse)
    except NetmgrError:
        record = None
    return record.conf_dir if record else DEFAULT_CONF_DIR


def _nftables() -> str:
    with closing(LibNftables()) as library:
        return library.run("list ruleset")


def _dumped(**requests: str) -> str:
    # By pyroute2: netmgr's own reader takes only what the agent needs.
    try:
        with IPRoute() as kernel:
            return _json(
                {
                    name: [part.dump() for part in getattr(kernel, request)("dump")]
                    for name, request in requests.items()
                }
            )
    except NetlinkError as error:
        raise KernelError(f"list {' and '.join(requests)}", error.code) from None


def _sysctls() -> str:
    paths = [path for pattern in SYSCTLS for path in settings.sysctls().glob(pattern)]
    connections = Path("/proc/sys/net")
    paths += [path for pattern in SYSCTLS_OF_CONNECTIONS for path in connections.glob(pattern)]
    return "".join(f"{path} = {_value(path)}\n" for path in sorted(paths) if path.is_file())


def _value(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        return error.strerror or str(error)


def _database(path: Path) -> str:
    """A state file's schema, whether it is sound, and how many rows each table has."""
    with closing(sqlite_file.open_to_read(path)) as connection:
        run: Callable[[str], sqlite3.Cursor] = connection.execute
        try:
            tables = [name for (name,) in run("SELECT name FROM sqlite_schema WHERE type='table'")]
            rows = {name: run(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}  # noqa: S608  the file's own tables
            (version,) = run("PRAGMA user_version").fetchone()
            (check,) = run("PRAGMA quick_check(10)").fetchone()
        except sqlite3.Error as error:
            raise sqlite_file.refusal(path, error) from error
    return _json({"schema": version, "quick_check": check, "rows": rows})


def _files(document: NodeDocument) -> str:
    lines = []
    for directory in sorted({document.state_dir, document.run_dir}):
        for path in [directory, *sorted(directory.rglob("*"))]:
            status = path.lstat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(status.st_mtime))
            lines.append(f"{status.st_mode:06o} {status.st_size:>12} {when} {path}\n")
    return "".join(lines)


def _output(program: str, package: str, *arguments: str) -> str:
    done = programs.run([programs.locate(program, package), *arguments], timeout=LOG_SECONDS)
    return (done.stdout + done.stderr).decode(errors="replace")


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read(LOG_BYTES).decode(errors="replace")


def _json(document: Any) -> str:  # noqa: ANN401  whatever JSON can say
    return json.dumps(document, indent=1, default=str) + "\n"
