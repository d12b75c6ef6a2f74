"""Services of a NAT host with `translation: endpoints`, opened while its document asks for it.

They are in nftables, whatever holds the other rules. A file in the state directory says so, from
before the first is programmed until all are removed: a host whose document changed finds what its
predecessor left, and a machine that never was a NAT host loads nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from netmgr import durable
from netmgr.agent.accounting import Accounting
from netmgr.agent.components import Agent, Component, Health, Remnants
from netmgr.agent.files import Files, Made
from netmgr.agent.scheduler import Task
from netmgr.api.snapshot import OpenService
from netmgr.documents.node import Backend, NodeDocument
from netmgr.documents.sites import TranslationMode
from netmgr.errors import ConfigError, KernelError, NetmgrError
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES
from netmgr.prefixes import Prefix

if TYPE_CHECKING:
    from netmgr.services.engine import Services
    from netmgr.services.model import ServiceStatus

_MARK_FILE = "services-backend"
_MARK = b"nftables\n"
"""What the file holds, for people; that it exists is what counts."""

log = logging.getLogger(__name__)


class NatServices(Component):
    """The Services of the documents. An error in them is reported and never ends the agent."""

    vital = ("services",)

    def __init__(self, services: Services, health: Health) -> None:
        self._services = services
        self._health = health
        self._is_started = False

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """Open the documents, or close what a predecessor opened where that is no longer wanted.

        Raises:
            ConfigError: the backend in use cannot hold Services.
            SetupError: inotify is not available.
            KernelError: the kernel refuses a socket.
            StateError: the state directory cannot be written.
        """
        document = agent.document
        mark = document.state_dir / _MARK_FILE
        nat = document.nat
        if nat is None or nat.translation is not TranslationMode.ENDPOINTS:
            if mark.exists():
                _retire(mark)
            return None
        _require_nftables(agent.config, document, agent.get(Accounting).rules.backend.name)
        from netmgr.services.engine import Services  # noqa: PLC0415  only where Services are opened

        spoke: list[Prefix] = []
        for site in document.sites:
            if site.name == document.site:
                spoke += site.prefixes
        machines: list[Prefix] = []
        if not nat.host_endpoints:
            own = (*document.node.addresses, *nat.addresses)
            machines = [*nat.machines, *(address.prefix for address in own)]
        services = Services.open(nat.services, nat.documents, tuple(spoke), tuple(machines))
        agent.stack.callback(services.close)
        note = Made(mark, lambda: durable.write(mark, _MARK))
        # Before the first Service is programmed: a successor has to know of it even after a crash.
        note.restore()
        agent.get(Files).keep(note)
        return cls(services, agent.health)

    def reconcile(self) -> None:
        """Take over from a predecessor, or repair what another program altered."""
        if self._is_started:
            self._health.repair("services", self._services.sync)
        else:
            self._health.attempt("services", self._take_over)

    def _take_over(self) -> None:
        self._services.start()
        # Only after success: until then each pass takes over from the predecessor again.
        self._is_started = True

    def tasks(self) -> Iterable[Task]:
        """Carry out what changed in the documents, at once."""
        yield Task(self._refresh, wakes=self._services.fileno())

    def _refresh(self) -> None:
        if self._is_started:
            self._health.attempt("services", self._services.refresh)

    def listed(self) -> list[OpenService]:
        """Every port of every Service that is open.

        Raises:
            KernelError: the connections that were begun cannot be read.
        """
        return [_view(one) for one in self._services.status()]

    def size(self) -> tuple[int, int]:
        """How many Services are open, and how many endpoints all their ports have."""
        return self._services.size()

    def refused(self) -> list[str]:
        """What cannot be used: file, line, key and why."""
        return self._services.faults()

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        """Remove the table of Services."""
        try:
            _remove()
        except KernelError as error:
            # A kernel without nf_tables has no such table; the other remnants are still there.
            if error.errno not in NO_NF_TABLES:
                raise
        else:
            yield "the table of Services was removed"
        (remnants.state_dir / _MARK_FILE).unlink(missing_ok=True)


def _view(one: ServiceStatus) -> OpenService:
    return {
        "service": str(one.service),
        "vip": str(one.vip),
        "ready": [str(endpoint) for endpoint in one.ready],
        "draining": [str(endpoint) for endpoint in one.draining],
        "sticky": one.sticky,
        "hits": one.hits,
    }


def _require_nftables(config: Path, document: NodeDocument, backend: str) -> None:
    """Refuse the legacy backend, which may be what `auto` or `iptables` found on this machine."""
    if backend == Backend.IPTABLES_LEGACY:
        raise ConfigError(
            f"{config}: nat.translation: endpoints needs nftables, "
            f"and backend: {document.backend} is {backend} on this machine; "
            "set backend: nftables, or translation: netmap"
        )


def _retire(mark: Path) -> None:
    """Remove what a predecessor opened; a failure is logged, and the next start tries again."""
    try:
        _remove()
    except NetmgrError as error:
        log.error("former-services-stay-open error=%s", error)  # noqa: TRY400  expected kinds only
    else:
        log.info("former-services-closed")
        # After the removal, so that a crash in between is followed by another try.
        mark.unlink(missing_ok=True)


def _remove() -> None:
    from netmgr.services.nftables import NftablesServices  # noqa: PLC0415  only for what was a NAT host

    services = NftablesServices(())
    try:
        services.remove()
    finally:
        services.close()
