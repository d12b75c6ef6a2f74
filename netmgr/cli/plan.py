"""`netmgr plan`: one address plan for a hub and every cluster. Each command stands in a `plan_*.py` beside this."""

from __future__ import annotations

import typer

from netmgr.cli import plan_check, plan_lock
from netmgr.cli.plan_common import EXIT_CODES, PlanGroup

app = typer.Typer(
    cls=PlanGroup,
    no_args_is_help=True,
    help=f"Plan the addresses of a hub and every cluster.\n\n{EXIT_CODES}",
)

for _command in (
    plan_lock.lock,
    plan_check.check,
    plan_check.show,
    plan_lock.diff,
    plan_lock.release,
):
    app.command()(_command)
