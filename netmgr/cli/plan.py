"""`netmgr plan`: one address plan for a hub and every cluster; its commands are in `plan_*.py`."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

import typer

from netmgr.cli.groups import LazyGroup


class _Plan(LazyGroup):
    entries: ClassVar = {
        "init": ("plan_init:init", "Write a first plan with a comment on each key."),
        "lock": ("plan_lock:lock", "Allocate prefixes, show the diff, ask, and write the lock."),
        "check": (
            "plan_check:check",
            "Check overlaps, forbidden ranges, headroom, limits and growth.",
        ),
        "show": ("plan_show:show", "Show what is locked."),
        "diff": ("plan_lock:diff", "Show what `plan lock` would change; -/+ is renumbering."),
        "merge": ("plan_git:merge", "Merge the locks of two branches."),
        "grow": ("plan_growth:grow", "Show what growth would change, and that no node moves."),
        "explain": (
            "plan_show:explain",
            "Explain an address: owner, node, block, key and packets.",
        ),
        "adopt": ("plan_lock:adopt", "Pin existing prefixes in the plan."),
        "export": ("plan_show:export", "Export the lock's prefixes, as JSON or for NetBox."),
        "import": (
            "plan_lock:import_",
            "Make the lock anew from an export, also from NetBox's export of it.",
        ),
        "release": ("plan_lock:release", "Release the addresses of a cluster or node pool."),
        "reach": ("plan_check:reach", "Compute who reaches whom from planned routes and rules."),
        "map": (
            "plan_show:map_",
            "Draw the address space as an HTML page: who has which block, and what is reserved.",
        ),
        "render": (
            "plan_render:app",
            "Render node.yaml files, cluster objects and cloud resources.",
        ),
    }

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer has no public name for its context
        # A document of a thousand clusters is a million objects and hardly a cycle, and then the
        # process ends. Walking all of them again and again would take half of the time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().invoke(ctx)
        finally:
            if was_enabled:
                gc.enable()


app = typer.Typer(cls=_Plan, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Plan the addresses of a hub and every cluster."""
