"""Opens an agent's books: the ledger, the rules of the right backend, and the accounts that join both."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import NamedTuple

from netmgr.agent import changeover, recovery
from netmgr.agent.accounts import Accounts
from netmgr.agent.files import Files, Made
from netmgr.agent.tagged_rules import TaggedRules
from netmgr.agent.telemetry import Telemetry
from netmgr.clock import Clock
from netmgr.config import Backend, NodeDocument
from netmgr.ledger.history import Retention
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.mark import MENDED, Mark
from netmgr.rules.choose import FILE_NAME, open_backend, open_kind, remember
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from netmgr.sites import Mapping

SERVICES_MARK = "services-backend"
"""In the state directory: the backend that holds Services which a NAT host opened, until all are closed."""

log = logging.getLogger(__name__)


class Books(NamedTuple):
    """The accounts, the rules they read, and what others' rules tell readers."""

    accounts: Accounts
    rules: Rules
    tagged: TaggedRules


def open_accounts(document: NodeDocument, clock: Clock, telemetry: Telemetry, files: Files, stack: ExitStack) -> Books:
    """The machine's accounts and rules, closed with `stack`.

    Raises:
        SetupError: the machine lacks something; says what.
        StateError: the ledger cannot be written.
    """
    if not opens_services(document) and (document.state_dir / SERVICES_MARK).exists():
        from netmgr.agent.opened import retire  # noqa: PLC0415  only for a machine that was a NAT host

        retire(document.state_dir / SERVICES_MARK)
    ledger, was_damaged = _open_ledger(document, clock)
    rules = Rules(open_backend(document.backend, document.state_dir), Policy.of(document))
    stack.callback(rules.close)

    def opened(kind: Backend) -> Rules:
        former = Rules(open_kind(kind), Policy.of(document))
        stack.callback(former.close)
        return former

    change = changeover.begin(document.state_dir, ledger, rules, opened)
    telemetry.state_rebuilds += examine(ledger, rules, *(change.rules if change else ()), was_damaged=was_damaged)
    if change is None:
        changeover.settle(document.state_dir, ledger, rules)
    files.keep(ledger, Made(document.state_dir / FILE_NAME, lambda: remember(rules.backend.name, document.state_dir)))
    accounts = Accounts(rules, ledger, clock, document.accounting.min_reading_seconds, change)
    _open_host_pods(document, rules, ledger, accounts, stack)
    stack.callback(accounts.close)
    return Books(accounts, rules, TaggedRules(rules, document.accounting.reading_seconds))


def examine(ledger: Ledger, *rules: Rules, was_damaged: bool = False) -> bool:
    """Hold the ledger against what the kernel has, before anything is posted; whether books were lost.

    Args:
        ledger: as it was opened.
        rules: those of every backend that may have counted for it.
        was_damaged: the ledger is a new one in the place of one that was set aside.
    """
    marks = [Mark.of(address) for one in rules for address in one.marks()]
    has_counters = was_damaged or (ledger.is_new and any(one.read() for one in rules))
    return ledger.examine(marks, has_counters=has_counters) in MENDED


def _open_host_pods(document: NodeDocument, rules: Rules, ledger: Ledger, accounts: Accounts, stack: ExitStack) -> None:
    known = [counter for counter, owner in ledger.counters().items() if owner and not counter.is_pod]
    if not document.accounting.host_pods and not known:
        return
    from netmgr.agent import host_pods  # noqa: PLC0415  only where they are counted, or were

    if document.accounting.host_pods:
        counted = host_pods.open_host_pods(document.accounting, rules.policy.known, ledger)
        stack.callback(counted.close)
        accounts.count_host_pods(counted)
    else:
        host_pods.retire(known, ledger)


def opens_services(document: NodeDocument) -> bool:
    """Whether this machine is to open Services itself."""
    return document.nat is not None and document.nat.translation is Mapping.ENDPOINTS


def _open_ledger(document: NodeDocument, clock: Clock) -> tuple[Ledger, bool]:
    accounting = document.accounting
    retention = Retention(accounting.history_hours, accounting.history_rows)
    return recovery.open_or_set_aside(
        document.state_dir / "ledger.sqlite",
        lambda path: Ledger.open(
            path,
            clock=clock,
            linger_seconds=accounting.linger_seconds,
            boot_id=recovery.boot_id(),
            retention=retention,
        ),
    )
