"""`netmgr plan`: one address plan for a hub and every cluster. Each command stands in a `plan_*.py` beside this."""

from __future__ import annotations

import typer

from netmgr.cli import plan_check, plan_explain, plan_growth, plan_lock, plan_map, plan_reach, plan_render
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
    plan_growth.grow,
    plan_explain.explain,
    plan_explain.adopt,
    plan_lock.release,
):
    app.command()(_command)
app.command("reach")(plan_reach.reach)
app.command("map")(plan_map.map_)
app.add_typer(plan_render.app, name="render")
app.add_typer(plan_growth.rehearse_app, name="rehearse")
app.add_typer(plan_growth.advise_app, name="advise")
