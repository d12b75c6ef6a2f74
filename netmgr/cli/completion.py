"""`netmgr completion`, and the values that a shell may complete.

The shell starts netmgr anew for each TAB, with the words so far in its environment. Values come
from files and sockets that are read within milliseconds; where that fails there are none.
"""

from __future__ import annotations

import functools
import io
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.errors import NetmgrError, SetupError

if TYPE_CHECKING:
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.lock import LockDocument

PROGRAM = "netmgr"
VARIABLE = "_NETMGR_COMPLETE"
"""Set by the shell's script."""

_PATIENCE_SECONDS = 0.5  # a person has pressed TAB and waits
_ODD = re.compile(r"[^a-zA-Z0-9./_-]")

Values = list[tuple[str, str]]
"""Values with a word on each, which zsh and fish show."""


class Shell(StrEnum):
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


def prepare() -> None:
    _typers().completion_init()
    # Whatever goes wrong, a half-typed line on the terminal is not the place to say so.
    sys.stderr = io.StringIO()


def _typers() -> Any:  # noqa: ANN401  typer does not list the names that it exports there
    import typer.completion

    return typer.completion


def _quiet(values: Callable[[typer.Context], Values]) -> Callable[[typer.Context], Values]:
    """Offer nothing where a document or a socket cannot be read."""

    # typer reads the signature to know what it may pass.
    @functools.wraps(values)
    def offered(ctx: typer.Context) -> Values:
        with suppress(NetmgrError, ValueError):  # the latter for a plan `/`, which has no name
            return values(ctx)
        return []

    return offered


@_quiet
def clusters(ctx: typer.Context) -> Values:
    return [(name, f"{cluster.nodes:,} nodes") for name, cluster in _plan(ctx).clusters.items()]


@_quiet
def node_pools(ctx: typer.Context) -> Values:
    """The node pools of the cluster, or of all clusters while its word is not known."""
    named = ctx.params.get("cluster")
    return [
        (pool, f"in {name}")
        for name, cluster in _plan(ctx).clusters.items()
        for pool in cluster.node_pools
        if named in (None, name)
    ]


@_quiet
def tombstones(ctx: typer.Context) -> Values:
    """What left the plan and still has addresses in the lock."""
    names = []
    for name, cluster in _lock(ctx).clusters.items():
        # Its node pools are released with it.
        if cluster.tombstone:
            names.append(name)
            continue
        names += [f"{name}/{pool}" for pool, held in cluster.node_pools.items() if held.tombstone]
    return [(name, "left the plan") for name in names]


@_quiet
def first_nodes(ctx: typer.Context) -> Values:
    # Only the first of each pool: there may be thousands.
    return [
        (f"{name}-{pool}-0", f"the first of {held.capacity:,}")
        for name, cluster in _lock(ctx).clusters.items()
        for pool, held in cluster.node_pools.items()
    ]


@_quiet
def routers(ctx: typer.Context) -> Values:
    return _hosts(ctx, "hub-router")


@_quiet
def nat_hosts(ctx: typer.Context) -> Values:
    return _hosts(ctx, "nat-host")


@_quiet
def pod_addresses(ctx: typer.Context) -> Values:
    from netmgr.cli.asking import ask

    answer = ask(ctx.params.get("socket"), "pods", timeout=_PATIENCE_SECONDS)
    return [
        # zsh evaluates what typer prints, and a pod's name is not ours.
        (address, _ODD.sub("?", f"{pod['namespace']}/{pod['pod']}"))
        for pod in answer["attachments"]
        for address in pod["addresses"]
    ]


def _hosts(ctx: typer.Context, role: str) -> Values:
    from netmgr.plan import machines

    return [(host.name, host.site) for host in machines.hosts(_lock(ctx)) if host.role == role]


def _plan(ctx: typer.Context) -> PlanDocument:
    from netmgr.plan.files import load_plan

    return load_plan(_file(ctx))


def _lock(ctx: typer.Context) -> LockDocument:
    from netmgr.plan.files import load_lock, lock_path

    lock = load_lock(lock_path(_file(ctx)))
    if lock is None:
        raise SetupError("there is no lock yet")
    return lock


def _file(ctx: typer.Context) -> Path:
    """The plan that a command is about, its default included; a controller may have none."""
    return Path(ctx.params.get("file") or ctx.params.get("plan") or "")
