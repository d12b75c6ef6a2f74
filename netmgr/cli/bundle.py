"""`netmgr bundle` and `netmgr kube bundle`: support archives of a node and of a cluster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.cli.options import Config
from netmgr.cli.output import size

if TYPE_CHECKING:
    from netmgr.archive import Archive

SHOWN = 3
"""So many missing parts are named."""

To = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Where to; - is standard output. Default: a name with the time, here."
    ),
]
Redact = Annotated[
    bool, typer.Option("--redact", help="Replace names of pods and namespaces by pseudonyms.")
]


def bundle(
    *,
    config: Config = NODE_DOCUMENT,
    to: To = None,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A log to include; may be repeated.")
    ] = None,
    redact: Redact = False,
) -> None:
    """Collect what support needs to know of this node in one archive; changes nothing.

    It has documents, the agent's answers, all rules, links and routes, network settings, the state
    files' soundness (not their content), logs and versions.
    """
    from netmgr.agent.health.bundle import collect

    write(collect(config, tuple(log or ()), redact=redact), to, "node")


def write(archive: Archive, to: Path | None, scope: str) -> None:
    """Write an archive, readable by its owner alone; say in a few lines what it has and lacks."""
    content, parts, missing = archive
    # On standard error: standard output may be the archive.
    for name, why in list(missing.items())[:SHOWN]:
        first_line = why.partition("\n")[0]
        typer.echo(f"without {name}: {first_line}", err=True)
    if (more := len(missing) - SHOWN) > 0:
        typer.echo(f"without {more} more, in whose place the archive says why", err=True)
    if to == Path("-"):
        sys.stdout.buffer.write(content)
        return
    from netmgr import durable

    path = to or Path(f"netmgr-{scope}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    durable.write(path, content, 0o600)
    areas = ", ".join(dict.fromkeys(name.partition("/")[0] for name in parts))
    typer.echo(f"{path}: {size(len(content))} in {len(parts) - len(missing)} parts ({areas}).")
    typer.echo("Look through it before you send it to anybody.")
