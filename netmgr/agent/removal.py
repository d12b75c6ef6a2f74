"""Takes everything of the agent's off a machine, by the marks that ARCHITECTURE lists, whatever state says.

The order is the agent's start turned round: pods' links first, so that nothing passes that is
not counted, then routes, rules and files. Each step may be repeated; what is gone already is fine.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from netmgr.agent import instance
from netmgr.agent.instance import HeldDirectory
from netmgr.config import Backend, NodeDocument
from netmgr.dataplane.routes import StaticRoutes
from netmgr.dataplane.unused import UnusedAddresses
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import KernelError, SetupError, StateError, TryAgainLater
from netmgr.prefixes import Family
from netmgr.rules import xt_listing
from netmgr.rules.choose import open_kind, remembered
from netmgr.rules.engine import Rules
from netmgr.rules.host_pods import HostPodRules
from netmgr.rules.nft_tables import is_supported
from netmgr.rules.policy import Policy
from netmgr.services.choose import open_backend as open_services


@dataclass(frozen=True, slots=True)
class Leavings:
    """Where an agent kept what it had, and whose name is in its rules' comments."""

    state_dir: Path
    run_dir: Path
    rule_owner: str


def remove(leavings: Leavings, *, with_pods: bool, keep_state: bool) -> Iterator[str]:
    """Remove all of it, telling each thing that was done.

    Args:
        leavings: where to look.
        with_pods: cut off pods that still have their network from netmgr, too.
        keep_state: leave the totals and leases where they are.

    Raises:
        StateError: an agent runs, or pods still need their network; nothing was changed then.
        KernelError: the kernel refused; the rest is still there.
    """
    with _no_agent(leavings):
        yield from _links(with_pods=with_pods)
        yield from _routes()
        marked = _marked(leavings.state_dir)
        backends = _backends(marked)
        yield from _all_rules(backends, marked, leavings)
        # Services may be left of a former backend; what counts host-network pods is always nftables'.
        for backend in dict.fromkeys((*backends, Backend.NFTABLES)):
            _services(backend)
        _host_pods()
        yield "tables of Services and of host-network pods were removed"
        directories = [leavings.run_dir] if keep_state else [leavings.run_dir, leavings.state_dir]
        for directory in directories:
            yield from _files(directory)


@contextmanager
def _no_agent(leavings: Leavings) -> Iterator[None]:
    """Hold the locks that an agent would hold; directories that are not there are not made."""
    with ExitStack() as stack:
        stack.enter_context(instance.namespace("netmgr host clean"))
        for path in {leavings.run_dir, leavings.state_dir}:
            if path.is_dir():
                directory = HeldDirectory(path, 0o700)
                stack.callback(directory.close)
                directory.take()
        yield


def _links(*, with_pods: bool) -> Iterator[str]:
    dataplane = Dataplane()
    try:
        pods = sorted(f"{identity.pod}" for identity in dataplane.attached())
        if pods and not with_pods:
            raise StateError(
                f"{len(pods)} pods still have their network from netmgr ({', '.join(pods[:3])} …); "
                "drain the node first, or cut them off with --with-pods"
            )
        yield from (f"link {name} of a pod was removed" for name in dataplane.detach_strays(()))
        dataplane.reap()
        yield from dataplane.remove_foreign(dataplane.drift(tuple).foreign)
    finally:
        dataplane.close()


def _routes() -> Iterator[str]:
    routes, unused = StaticRoutes(()), UnusedAddresses()
    try:
        yield from routes.reconcile()
        yield from unused.reconcile(())
    finally:
        routes.close()
        unused.close()


def _marked(state_dir: Path) -> Backend | None:
    """The backend that the agent used last, where that can still be read."""
    try:
        return remembered(state_dir)
    except StateError:
        return None


def _backends(marked: Backend | None) -> list[Backend]:
    """All that may hold rules: an agent that was killed while it changed its backend leaves those of two.

    The legacy one only where it was used or the table is that its rules are in: opening it makes what it looks for.
    """
    legacy = [Backend.IPTABLES_LEGACY] if any("mangle" in xt_listing.in_use(family) for family in Family) else []
    nft = [Backend.IPTABLES_NFT] if is_supported() else []
    return list(dict.fromkeys([*([marked] if marked else []), Backend.NFTABLES, *nft, *legacy]))


def _all_rules(backends: Iterable[Backend], marked: Backend | None, leavings: Leavings) -> Iterator[str]:
    in_use = []
    for backend in backends:
        try:
            yield from _rules(backend, leavings)
        except SetupError:
            if backend is marked:
                raise
            # Without its library no agent had rules in it.
        except (KernelError, TryAgainLater) as error:
            if isinstance(error, KernelError) and error.errno == errno.EBUSY:
                # Both variants of iptables look into the same sets, which go with the rules of the last.
                in_use.append(backend)
            elif marked in (None, backend):
                raise
            else:
                # Other people's tables may be such that nobody can have rules of ours in them.
                yield f"{backend}, which the agent did not use last, was not looked into: {error.message}"
    for backend in in_use:
        yield from _rules(backend, leavings)


def _rules(backend: Backend, leavings: Leavings) -> Iterator[str]:
    document = NodeDocument.model_validate(
        {
            "apiVersion": "netmgr.io/v1alpha1",
            "kind": "Node",
            "node": {"name": "removed"},
            "range_source": "azure",
            "accounting": {"rule_owner": leavings.rule_owner},
        }
    )
    rules = Rules(open_kind(backend), Policy.of(document))
    try:
        rules.remove()
    finally:
        rules.close()
    yield f"rules and sets of {backend} were removed"


def _services(backend: Backend) -> None:
    with suppress(SetupError):  # without its library a backend has opened none
        services = open_services(backend, ())
        try:
            services.remove()
        finally:
            services.close()


def _host_pods() -> None:
    with suppress(SetupError):  # as above
        rules = HostPodRules((), ())
        try:
            rules.remove()
        finally:
            rules.close()


def _files(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        return
    for entry in sorted(directory.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    try:
        directory.rmdir()
    except OSError:
        yield f"{directory} is empty and stays: it is a mount point here"
    else:
        yield f"{directory} was removed"
