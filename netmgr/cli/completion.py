"""`netmgr completion`, and the values that a shell may complete.

The shell starts netmgr anew for each TAB, with the words so far in its environment. Values come
from files and sockets that are read within milliseconds; where that fails there are none.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.errors import NetmgrError

if TYPE_CHECKING:
    from netmgr.documents.sites import Role
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.lock import LockDocument

PROGRAM = "netmgr"
VARIABLE = "_NETMGR_COMPLETE"
"""Set by the shell's script, whose words are in one of the others."""

_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_PATIENCE_SECONDS = 0.5
_ODD = re.compile(r"[^a-zA-Z0-9./_-]")

Values = list[tuple[str, str]]
"""Values with a word on each, which zsh and fish show."""


class Shell(StrEnum):
    """Whose completion to print."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to complete.")],
) -> None:
    """Print the script by which a shell completes commands, options and values.

    bash: netmgr completion bash > /usr/share/bash-completion/completions/netmgr

    zsh: netmgr completion zsh > /usr/local/share/zsh/site-functions/_netmgr

    fish: netmgr completion fish > /etc/fish/completions/netmgr.fish

    For one user: eval "$(netmgr completion bash)" in ~/.bashrc, or the same for zsh in ~/.zshrc,
    behind compinit.
    """
    options = {"prog_name": PROGRAM, "complete_var": VARIABLE, "shell": shell}
    typer.echo(_typers().get_completion_script(**options))
    if shell is Shell.ZSH:
        # Loaded from a function folder, this file only defines a completion at the first TAB.
        typer.echo(f"if [[ $funcstack[1] = _{PROGRAM} ]]; then _{PROGRAM}_completion; fi")


def words() -> list[str]:
    """The words that a shell wants completed, without the program's; prepares typer for it."""
    _typers().completion_init()
    # Whatever goes wrong, a half-typed line on the terminal is not the place to say so.
    sys.stderr = io.StringIO()
    return next(filter(None, map(os.environ.get, _WORDS)), "").split()[1:]


def _typers() -> Any:  # noqa: ANN401  typer does not list the names that it exports there
    import typer.completion

    return typer.completion


def clusters(ctx: typer.Context) -> Values:
    """The plan's clusters."""
    plan = _plan(ctx)
    planned = plan.clusters.items() if plan else ()
    return [(name, f"{cluster.nodes:,} nodes") for name, cluster in planned]


def node_pools(ctx: typer.Context) -> Values:
    """The node pools of the cluster, or of all clusters while its word is not known."""
    plan, named = _plan(ctx), ctx.params.get("cluster")
    planned = plan.clusters.items() if plan else ()
    return [
        (pool, f"in {name}")
        for name, cluster in planned
        for pool in cluster.node_pools
        if named in (None, name)
    ]


def tombstones(ctx: typer.Context) -> Values:
    """What left the plan and still has addresses in the lock."""
    lock = _lock(ctx)
    return [(name, "left the plan") for name in _tombstones(lock)] if lock else []


def _tombstones(lock: LockDocument) -> Iterator[str]:
    for name, cluster in lock.clusters.items():
        if cluster.tombstone:
            yield name
        for pool, held in cluster.node_pools.items():
            if held.tombstone and not cluster.tombstone:
                yield f"{name}/{pool}"


def first_nodes(ctx: typer.Context) -> Values:
    """The first node of each node pool: there may be thousands."""
    lock = _lock(ctx)
    locked = lock.clusters.items() if lock else ()
    return [
        (f"{name}-{pool}-0", f"the first of {held.capacity:,}")
        for name, cluster in locked
        for pool, held in cluster.node_pools.items()
    ]


def routers(ctx: typer.Context) -> Values:
    """The hub's routers."""
    from netmgr.documents.sites import Role

    return _hosts(ctx, Role.HUB_ROUTER)


def nat_hosts(ctx: typer.Context) -> Values:
    """The clusters' NAT hosts."""
    from netmgr.documents.sites import Role

    return _hosts(ctx, Role.NAT_HOST)


def pod_addresses(ctx: typer.Context) -> Values:
    """The addresses of this node's pods."""
    from netmgr.cli.asking import ask

    with suppress(NetmgrError):
        answer = ask(ctx.params.get("socket"), "pods", timeout=_PATIENCE_SECONDS)
        return [
            # zsh evaluates what typer prints, and a pod's name is not ours.
            (address, _ODD.sub("?", f"{pod['namespace']}/{pod['pod']}"))
            for pod in answer["attachments"]
            for address in pod["addresses"]
        ]
    return []


def _hosts(ctx: typer.Context, role: Role) -> Values:
    from netmgr.plan import machines

    lock = _lock(ctx)
    hosts = machines.hosts(lock) if lock else ()
    return [(host.name, host.site) for host in hosts if host.role is role]


def _plan(ctx: typer.Context) -> PlanDocument | None:
    from netmgr.plan.files import load_plan

    path = _file(ctx)
    with suppress(NetmgrError):
        return load_plan(path) if path else None
    return None


def _lock(ctx: typer.Context) -> LockDocument | None:
    from netmgr.plan.files import load_lock, lock_path

    path = _file(ctx)
    with suppress(NetmgrError, ValueError):  # the latter for `/`, which has no name
        return load_lock(lock_path(path)) if path else None
    return None


def _file(ctx: typer.Context) -> Path | None:
    """The plan that a command is about, its default included; a controller may have none."""
    return ctx.params.get("file") or ctx.params.get("plan")
