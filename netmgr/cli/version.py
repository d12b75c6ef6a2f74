"""`netmgr version`: which release this is, what it was built from, and what it understands."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from typing import Any

import netmgr
from netmgr.cli.options import Format, OutputFormat
from netmgr.cli.output import Table, respond


def version(*, output: Format = OutputFormat.TABLE) -> None:
    """Show which netmgr this is: release, commit, Python, launchers, protocol, state schemas."""
    from cni import build, wire
    from netmgr import provenance
    from netmgr.ipam import store as leases
    from netmgr.ledger import store as ledger

    source = provenance.read()
    document = {
        "version": 1,
        "release": netmgr.__version__,
        "commit": source.commit,
        "committed": source.committed,
        "dirty": source.dirty,
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "machine": platform.machine(),
        },
        "launchers": {architecture: build.state(architecture) for architecture in build.MACHINES},
        "protocol": wire.GREETING.decode(),
        "state_schemas": {
            "ipam.sqlite": leases.SCHEMA_VERSION,
            "ledger.sqlite": ledger.SCHEMA_VERSION,
        },
    }
    respond(output, document, _table(document))


def _table(document: dict[str, Any]) -> Iterator[Table]:
    commit = document["commit"] or "unknown"
    commit += f" of {document['committed']}" if document["committed"] else ""
    commit += ", with changes" if document["dirty"] else ""
    python = document["python"]
    table = Table("", "")
    table.row("netmgr", document["release"])
    table.row("commit", commit)
    table.row("Python", f"{python['version']} on {python['machine']} ({python['executable']})")
    launchers = [f"{name}: {state}" for name, state in document["launchers"].items()]
    table.row("launchers", ", ".join(launchers))
    table.row("protocol", document["protocol"])
    schemas = [f"{name} {number}" for name, number in document["state_schemas"].items()]
    table.row("state", ", ".join(schemas))
    yield table
