"""Which components an agent has, by role, in the order in which they are opened and started.

They are stopped in reverse, and `netmgr host clean` removes them in reverse. A role loads its own
components alone: what the others need would cost memory on every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from netmgr.agent.accounting.accounting import NodeAccounting, TaggedRules
from netmgr.agent.accounting.host_pods import HostPods
from netmgr.agent.core import instance
from netmgr.agent.core.components import Component, Reconciler, Remnants
from netmgr.agent.core.files import Files
from netmgr.agent.core.instance import RUN_MODE, HeldDirectory, Holder
from netmgr.agent.network.router import Router
from netmgr.agent.queries import Readers
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role

Kinds = tuple[type[Component], ...]


def of(document: NodeDocument) -> Kinds:
    """The components of the machine that a node document describes."""
    if document.role is not Role.NODE:
        return gateway()
    return wiring_node() if document.cni else observing_node()


def wiring_node() -> Kinds:
    """A node whose pods this agent wires."""
    from netmgr.agent.accounting.budgets import Budgets  # noqa: PLC0415  nodes' alone
    from netmgr.agent.accounting.connections import (  # noqa: PLC0415  nodes' alone
        ConnectionLimits,
        Tracking,
    )
    from netmgr.agent.accounting.flowtable import FlowtableDevices  # noqa: PLC0415  nodes' alone
    from netmgr.agent.accounting.limits import Limits  # noqa: PLC0415  nodes' alone
    from netmgr.agent.cni.node import Node  # noqa: PLC0415  this role's alone
    from netmgr.agent.cni.repairs import Repairs  # noqa: PLC0415  this role's alone
    from netmgr.agent.cni.server import CniSocket  # noqa: PLC0415  this role's alone
    from netmgr.agent.network.pool import NodeAddresses  # noqa: PLC0415  this role's alone
    from netmgr.agent.network.ranging import Ranges  # noqa: PLC0415  this role's alone

    return (
        # Directories are restored before the files in them.
        Files,
        # Before the accounts, which begin with the pods that the kernel's links show. A link whose
        # attachment is gone is taken down here, so that nothing of it passes once it is not
        # counted.
        NodeAddresses,
        Router,
        # Before the rules are applied for the first time: withdrawn addresses that pods still hold
        # are masqueraded and guarded like the others. After the router, which knows other nodes.
        Ranges,
        # The ledger knows a counter before the kernel has it, and a former backend is retired only
        # when all components are open: an agent that cannot go on must not take it away.
        NodeAccounting,
        HostPods,
        # Pods that are there are limited again before anything else of theirs is repaired, and the
        # node limits each new one before its ADD is answered.
        Limits,
        Budgets,
        ConnectionLimits,
        Node,
        Repairs,
        # After the accounts, whose rules name the flowtable, and whose repairs empty it.
        FlowtableDevices,
        TaggedRules,
        Tracking,
        # One pass before any request: spooled DELs give back what the first ADD may need.
        Reconciler,
        # Rules before servers: no pod is attached that is not counted from its first packet.
        # Readers come first: whoever learns over the CNI socket that the node is ready may read its
        # counters at once. Until the CNI socket listens, the snapshot says that it is not ready.
        Readers,
        # The spool is replayed again when the socket listens, since a launcher may just have
        # missed it.
        CniSocket,
    )


def observing_node() -> Kinds:
    """A node whose pods another plugin wires (`cni: off`): it counts, and does nothing else."""
    from netmgr.agent.accounting.budgets import Budgets  # noqa: PLC0415  nodes' alone
    from netmgr.agent.accounting.connections import (  # noqa: PLC0415  nodes' alone
        ConnectionLimits,
        Tracking,
    )
    from netmgr.agent.accounting.flowtable import FlowtableDevices  # noqa: PLC0415  nodes' alone
    from netmgr.agent.accounting.limits import Limits  # noqa: PLC0415  nodes' alone
    from netmgr.agent.accounting.observing import Observation  # noqa: PLC0415  this role's alone

    return (
        Files,
        Router,
        # Starts with the pods that a predecessor counted; what changed since is the first look's.
        NodeAccounting,
        HostPods,
        Observation,
        Limits,
        Budgets,
        ConnectionLimits,
        FlowtableDevices,
        TaggedRules,
        Tracking,
        Reconciler,
        Readers,
    )


def gateway() -> Kinds:
    """A hub router or a NAT host: it forwards between sites and runs no pods."""
    from netmgr.agent.accounting.nat import NatHost  # noqa: PLC0415  this role's alone

    return (
        Files,
        # Rules before forwarding, so that not one packet passes that they would have dropped. Those
        # that are as they should be are not written again: connections that they translate survive
        # a restart.
        NodeAccounting,
        HostPods,
        Router,
        NatHost,
        TaggedRules,
        Reconciler,
        Readers,
    )


def remove(remnants: Remnants) -> Iterator[str]:
    """Remove all the agent left on a machine, whatever state says; describes each thing done.

    Raises:
        StateError: an agent runs, or pods still need their network; nothing was changed then.
        KernelError: the kernel refused; the rest is still there.
    """
    # The locks that an agent would hold; directories that are not there are not made.
    with ExitStack() as stack:
        stack.enter_context(instance.namespace(Holder.CLEAN))
        for path in {remnants.run_dir, remnants.state_dir}:
            if path.is_dir():
                directory = HeldDirectory(path, RUN_MODE)
                stack.callback(directory.close)
                directory.take()
        # The gateway's go last. So pods lose their links before what counts them goes, and a router
        # loses its routes before the rules that keep sites apart.
        for component in reversed(dict.fromkeys((*gateway(), *observing_node(), *wiring_node()))):
            yield from component.remove(remnants)
