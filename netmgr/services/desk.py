"""What the documents say is to be opened, kept up to date from change to change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from netmgr.errors import StateError
from netmgr.prefixes import Address
from netmgr.services.directory import Documents
from netmgr.services.joining import Catalogue, Opening, Openings
from netmgr.services.model import ServiceName, ServicePort
from netmgr.services.objects import Refused


class Opened(NamedTuple):
    """One open ServicePort, and whose it is."""

    service: ServiceName
    opening: Opening


class Desk:
    """Reads documents and knows what they open. What is refused stays as it was before. Not thread-safe."""

    def __init__(self, documents: Documents, catalogue: Catalogue) -> None:
        self._documents = documents
        self._catalogue = catalogue
        self._refused: dict[ServiceName, Refused] = {}
        self._told: dict[ServiceName, str] = {}
        self._ports: dict[ServiceName, frozenset[ServicePort]] = {}
        self._unread = ""
        self.opened: dict[ServicePort, Opened] = {}

    def read(self, names: Iterable[str] | None) -> dict[ServicePort, tuple[Opening | None, Opening | None]]:
        """Take what changed in the files of these names (None: in all); what each ServicePort was, and is now."""
        try:
            changed = self._documents.changed(names)
            self._unread = ""
        except StateError as error:
            self._unread = str(error)
            return {}
        touched: set[ServiceName] = set()
        for path, content in changed.items():
            touched |= self._catalogue.replace(path, content)
        before = dict(self._refused)
        pairs = self._opened_anew(touched | before.keys())
        # A sentence is written again only if it can have changed: to find its line, a file is read once more.
        new = [name for name, fault in self._refused.items() if name in touched or fault != before.get(name)]
        sentences = self._documents.describe([self._refused[name] for name in new])
        told = self._told | dict(zip(new, sentences, strict=True))
        self._told = {name: told[name] for name in self._refused}
        return pairs

    def faults(self) -> list[str]:
        """What is refused now: file, line, key, and what to do about it."""
        return [self._unread] * bool(self._unread) + sorted([*self._documents.faults.values(), *self._told.values()])

    def in_doubt(self) -> frozenset[Address] | None:
        """Addresses that refused documents may have opened before; None: any, since a file cannot be read."""
        if self._unread or self._documents.faults:
            return None
        return frozenset(address for name in self._refused for address in self._catalogue.addresses(name))

    def _opened_anew(self, names: set[ServiceName]) -> dict[ServicePort, tuple[Opening | None, Opening | None]]:
        """Everything is closed before anything is opened, so that a ServicePort may pass from one to another."""
        now: dict[ServiceName, Openings] = {}
        for name in sorted(names):
            try:
                now[name] = self._catalogue.openings(name)
                self._refused.pop(name, None)
            except Refused as fault:
                self._refused[name] = fault
        held = {name: {seen: self.opened.pop(seen).opening for seen in self._ports.pop(name, ())} for name in now}
        # Who has a ServicePort keeps it against who only asks for it.
        for name in sorted(now, key=lambda name: not held[name]):
            self._open(name, now[name], held[name])
        before = {seen: opening for openings in held.values() for seen, opening in openings.items()}
        after = {seen: self.opened[seen].opening for name in now for seen in self._ports.get(name, ())}
        pairs = {seen: (before.get(seen), after.get(seen)) for seen in before.keys() | after.keys()}
        return {seen: pair for seen, pair in pairs.items() if pair[0] != pair[1]}

    def _open(self, name: ServiceName, openings: Openings, held: Openings) -> None:
        taken = next((seen for seen in openings if seen in self.opened), None)
        if taken is not None:
            other = self.opened[taken].service
            self._refused[name] = Refused(
                self._catalogue.place_of(name),
                f"service {name}: {taken} is open already for service {other}; a ServicePort is of one Service",
                self._catalogue.place_of(other),
            )
            openings = {seen: opening for seen, opening in held.items() if seen not in self.opened}
        if openings:
            self._ports[name] = frozenset(openings)
            self.opened.update({seen: Opened(name, opening) for seen, opening in openings.items()})
