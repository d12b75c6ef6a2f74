"""Services that a NAT host opens itself (`translation: endpoints`): kept while the document asks for it, then closed.

A file in the state directory names the backend that holds them, from before the first is programmed
until all are removed. So a host whose document changed finds what its
predecessor left, and a machine that never was a NAT host loads nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from netmgr import durable
from netmgr.agent.files import Made
from netmgr.agent.opening import SERVICES_MARK
from netmgr.agent.rhythm import Steps
from netmgr.config import Backend, NodeDocument
from netmgr.errors import NetmgrError, StateError
from netmgr.prefixes import Prefix
from netmgr.services.choose import holder, open_backend
from netmgr.services.engine import Services
from netmgr.services.model import ServiceStatus
from netmgr.snapshot import OpenService

STEP = "services"
_EVERYTHING = (Prefix.parse("0.0.0.0/0"), Prefix.parse("::/0"))
"""Instead of the ranges of a document that is no more, so that either family is looked at."""


log = logging.getLogger(__name__)


class OpenServices:
    """What the documents name, in the kernel. An error in them is told and never ends the agent."""

    def __init__(self, document: NodeDocument, backend: str, stack: ExitStack) -> None:
        """Open documents and backend; the kernel is changed by the first `reconcile`.

        Raises:
            SetupError: a library or inotify is not to be had.
            KernelError: the kernel refuses a socket.
            StateError: the state directory cannot be written.
        """
        if document.nat is None:
            raise ValueError("a machine without nat opens no Services")
        spoke = tuple(prefix for site in document.sites if site.name == document.site for prefix in site.prefixes)
        own = (*document.nat.machines, *(each.prefix for each in (*document.node.addresses, *document.nat.addresses)))
        machines = () if document.nat.host_endpoints else own
        self._services = Services.open(backend, document.nat.services, document.nat.documents, spoke, machines)
        stack.callback(self._services.close)
        mark = document.state_dir / SERVICES_MARK
        self._note(mark, backend)
        self.mark = Made(mark, lambda: self._note(mark, backend))
        self._is_started = False

    def _note(self, mark: Path, backend: str) -> None:
        """Remove what other backends hold; one that cannot be removed stays in the mark for the next start."""
        former = [other for other in _marked(mark) if other != backend]
        durable.write(mark, " ".join([*former, backend]).encode() + b"\n")
        if former and _are_removed(former):
            durable.write(mark, f"{backend}\n".encode())

    def fileno(self) -> int:
        """Becomes readable when documents may have changed."""
        return self._services.fileno()

    def refresh(self, steps: Steps) -> None:
        """Carry out what changed in the documents, at once."""
        if self._is_started:
            steps.attempt(STEP, self._services.refresh)

    def reconcile(self, steps: Steps) -> None:
        """Take over from a predecessor, or put right what another program altered."""
        if self._is_started:
            steps.repair(STEP, self._services.sync)
        else:
            steps.attempt(STEP, self._start)

    def _start(self) -> None:
        self._services.start()
        self._is_started = True

    def listed(self) -> list[OpenService]:
        """Every port of every Service that is open.

        Raises:
            KernelError: the connections that were begun cannot be read.
        """
        return [_view(one) for one in self._services.status()]

    def size(self) -> tuple[int, int]:
        """How many Services are open, and how many endpoints stand behind all their ports."""
        return self._services.size()

    def refused(self) -> list[str]:
        """What cannot be used: file, line, key and why."""
        return self._services.faults()


def _view(one: ServiceStatus) -> OpenService:
    return {
        "service": str(one.service),
        "seen": str(one.seen),
        "ready": [str(endpoint) for endpoint in one.ready],
        "draining": [str(endpoint) for endpoint in one.draining],
        "sticky": one.sticky,
        "hits": one.hits,
    }


def retire(mark: Path) -> None:
    """Take away what a predecessor opened; what cannot be taken away is told, and tried again with the next start."""
    if _are_removed(_marked(mark)):
        mark.unlink(missing_ok=True)


def _are_removed(backends: Iterable[str]) -> bool:
    """Remove Services from each backend, whatever becomes of the others; whether all are gone."""
    are_gone = True
    for backend in backends:
        try:
            opened = open_backend(backend, _EVERYTHING)
            try:
                opened.remove()
            finally:
                opened.close()
        except NetmgrError as error:
            log.error("former-services-stay-open backend=%s error=%s", backend, error)  # noqa: TRY400  expected kinds only
            are_gone = False
        else:
            log.info("former-services-closed backend=%s", backend)
    return are_gone


def _marked(mark: Path) -> tuple[str, ...]:
    """The backends that may hold Services; every one where the mark names none, as an empty one."""

    def parse(text: str) -> tuple[str, ...]:
        # By what holds them: a version that knew one variant of iptables alone gave it another name.
        names = tuple(dict.fromkeys(holder(Backend(name)) for name in text.split()))
        if not names:
            raise ValueError("it names no backend")
        return names

    try:
        return durable.read(mark, parse) or ()
    except StateError as error:
        log.error("services-mark-useless action=look-in-every-backend error=%s", error)  # noqa: TRY400  as above
        return Backend.NFTABLES, Backend.IPTABLES_LEGACY
