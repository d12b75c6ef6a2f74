"""`netmgr plan`: one address plan for a hub and every cluster; its commands are in `plan_*.py`."""

from __future__ import annotations

import typer

from netmgr.cli import plan_check, plan_growth, plan_init, plan_lock, plan_render, plan_show
from netmgr.cli.plan_common import PlanGroup

app = typer.Typer(
    cls=PlanGroup,
    no_args_is_help=True,
    help="Plan the addresses of a hub and every cluster.",
)

for _command in (
    plan_init.init,
    plan_lock.lock,
    plan_check.check,
    plan_show.show,
    plan_lock.diff,
    plan_growth.grow,
    plan_show.explain,
    plan_lock.adopt,
    plan_lock.release,
    plan_check.reach,
):
    app.command()(_command)
# `map` would shadow Python's own in its module.
app.command("map")(plan_show.map_)
app.add_typer(plan_render.app, name="render")
app.add_typer(plan_growth.dry_run_app, name="dry-run")
app.add_typer(plan_growth.advise_app, name="advise")
