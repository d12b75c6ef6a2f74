"""`netmgr version`: which release this is, what it was built from, and what it understands."""

from __future__ import annotations

import platform
import sys
from typing import Any

import netmgr
from netmgr.cli.options import Format, Output
from netmgr.cli.output import Table, show, show_document


def version(*, output: Format = Output.TABLE) -> None:
    """Show which netmgr this is: release, commit, Python, launchers, protocol, state schemas."""
    document = _document()
    if output is Output.TABLE:
        show(_table(document))
    else:
        show_document(document, output)


def _document() -> dict[str, Any]:
    from cni import build, wire
    from netmgr import provenance
    from netmgr.ipam import store as leases
    from netmgr.ledger import store as ledger

    source = provenance.read()
    return {
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


def _table(document: dict[str, Any]) -> Table:
    table = Table("", "")
    table.row("netmgr", document["release"])
    table.row("commit", _commit(document))
    python = document["python"]
    table.row("Python", f"{python['version']} on {python['machine']} ({python['executable']})")
    launchers = [f"{name}: {state}" for name, state in document["launchers"].items()]
    table.row("launchers", ", ".join(launchers))
    table.row("protocol", document["protocol"])
    schemas = [f"{name} {number}" for name, number in document["state_schemas"].items()]
    table.row("state", ", ".join(schemas))
    return table


def _commit(document: dict[str, Any]) -> str:
    if document["commit"] is None:
        return "unknown"
    changed = ", with changes" if document["dirty"] else ""
    when = f" of {document['committed']}" if document["committed"] else ""
    return f"{document['commit']}{when}{changed}"
