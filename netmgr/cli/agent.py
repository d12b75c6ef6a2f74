"""`netmgr agent`: the node agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def agent(
    *,
    config: Annotated[Path, typer.Option("--config", "-c", help="The node document (node.yaml).")] = Path(
        "/etc/netmgr/node.yaml"
    ),
    check: Annotated[bool, typer.Option("--check", help="Validate the document and exit.")] = False,
) -> None:
    """Run the node agent: serve CNI requests, count traffic, keep rules and routes right."""
    if check:
        from netmgr import documents
        from netmgr.config import NodeDocument

        documents.load(config, NodeDocument)
        typer.echo(f"{config}: valid")
        return
    from netmgr.agent.main import run

    run(config)
