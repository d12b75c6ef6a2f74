"""A table of ours in nftables: runs commands, and lists what it has (libnftables-json(5))."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address, summarize_address_range
from typing import Any

from netmgr.errors import Ignoring, KernelError
from netmgr.kernel import nf_tables
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES, NftSocket
from netmgr.prefixes import Address, Prefix
from netmgr.rules.nft_chains import Base

_FAMILIES = {"inet": nf_tables.NFPROTO_INET, "netdev": nf_tables.NFPROTO_NETDEV}

Object = Mapping[str, Any]
"""One object of nft's JSON output."""


@dataclass
class Listing:
    """What a table has; `comments` are those of each chain's rules in their order."""

    sets: dict[str, Object] = field(default_factory=dict)
    flowtables: set[str] = field(default_factory=set)
    chains: dict[str, Object] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    quotas: set[str] = field(default_factory=set)
    comments: dict[str, list[str]] = field(default_factory=dict)
    is_dormant: bool = False

    @classmethod
    def of(cls, objects: Iterable[Object]) -> Listing:
        """Raises KernelError: something has another shape than nft has shown so far."""
        listing = cls()
        with odd_objects():
            for item in objects:
                for kind, body in item.items():
                    listing.take(kind, body)
        return listing

    def take(self, kind: str, body: Object) -> None:
        # Names are compared and sorted later, where other types would fail.
        for key in ("name", "chain", "comment"):
            if not isinstance(body.get(key, ""), str):
                raise TypeError(f"{key} is {body[key]!r}")
        match kind:
            case "set":
                self.sets[body["name"]] = body
            case "flowtable":
                self.flowtables.add(body["name"])
            case "chain":
                self.chains[body["name"]] = body
                self.comments.setdefault(body["name"], [])
            case "counter":
                self.counters.add(body["name"])
            case "quota":
                self.quotas.add(body["name"])
            case "rule":
                self.comments.setdefault(body["chain"], []).append(body.get("comment", ""))
            case _:
                pass

    def is_base(self, chain: str, base: Base) -> bool:
        """Whether a chain is there and is this base chain."""
        body = self.chains.get(chain, {})
        made = tuple(body.get(key) for key in ("type", "hook", "prio", "policy"))
        # nft 1.0.6 does not show the device.
        return (*made, body.get("dev", base.device)) == (*base[:3], "accept", base.device)

    def holds(
        self,
        marks: Mapping[str, list[str]],
        bases: Mapping[str, Base],
        others: Collection[str] = (),
    ) -> bool:
        """Whether the table is in effect, and has these chains and none but `others` beside them.

        `marks` are the comments of their rules, by the chain's name.
        """
        comments = {name: listed for name, listed in self.comments.items() if name not in others}
        is_whole = comments == marks and not self.is_dormant
        return is_whole and all(self.is_base(name, base) for name, base in bases.items())

    def prefixes(self, name: str) -> frozenset[Prefix]:
        """Elements of a set of prefixes; none without it."""
        with odd_objects():
            entries = self.sets.get(name, {}).get("elem", ())
            return frozenset(prefix for entry in entries for prefix in prefixes(entry))


@contextmanager
def odd_objects() -> Iterator[None]:
    """Raises KernelError for what objects of another shape than nft has shown so far lead to."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise KernelError("nft list table", details=f"shows an odd object: {error!r}") from None


def prefixes(entry: Any) -> Iterator[Prefix]:  # noqa: ANN401 - nft's JSON has three shapes of interval
    if isinstance(entry, str):
        yield Address.parse(entry).prefix
    elif "prefix" in entry:
        yield Prefix.parse(f"{entry['prefix']['addr']}/{entry['prefix']['len']}")
    else:
        # nft joins neighbouring prefixes into one range when it lists them.
        first, last = map(ip_address, entry["range"])
        yield from (Prefix.parse(str(part)) for part in summarize_address_range(first, last))


class Fingerprints:
    """What nft shows of each rule of a table, by the rule's comment.

    A rule that was there before us counts as intact if its comment does.
    """

    def __init__(self) -> None:
        # Not kept on disk, where it would have to survive nft versions that show a rule in another
        # form.
        self._known: dict[str, Any] = {}

    def learn(self, objects: Iterable[Object], chains: Collection[str]) -> None:
        """Remember how nft shows the rules of these chains, which were written a moment ago."""
        # A comment's digest covers what we wrote, not what the rule is now: `nft replace rule` may
        # keep the comment and change the rule.
        with odd_objects():
            for rule in _commented(objects):
                if rule["chain"] in chains:
                    self._known[rule["comment"]] = rule["expr"]

    def compared(self, objects: Sequence[Object]) -> list[Object]:
        """The objects, with another comment on every rule that was altered."""
        with odd_objects():
            shown = {rule["comment"]: rule["expr"] for rule in _commented(objects)}
            # What was learned wins: a rule that is shown otherwise now was altered.
            self._known = {
                comment: self._known.get(comment, rule) for comment, rule in shown.items()
            }
            return [self._compared(item) for item in objects]

    def _compared(self, item: Object) -> Object:
        rule = item.get("rule", {})
        comment = rule.get("comment", "")
        if not comment or rule["expr"] == self._known[comment]:
            return item
        # The ids stay readable; only the digest of the text goes.
        return {"rule": rule | {"comment": f"{comment.rpartition(' ')[0]} altered"}}


def _commented(objects: Iterable[Object]) -> Iterator[Object]:
    return (item["rule"] for item in objects if "comment" in item.get("rule", {}))


class NftTable:
    """The table of this name, such as `inet netmgr`, in the namespace of the calling process.

    Raises:
        SetupError: libnftables is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        family, self._short_name = name.split()
        self._family = _FAMILIES[family]
        self._nft = LibNftables()
        self.socket = NftSocket()
        self._fingerprints = Fingerprints()
        self._generation = -1
        self._listing = Listing()

    def run(self, commands: str) -> None:
        """Run commands as one transaction; after a KernelError nothing was changed."""
        self._nft.run(commands)

    def wake(self) -> None:
        """Have a table that was switched off be in effect, before any of its chains is changed."""
        if self._listing.is_dormant:
            # Adding it without the flag wakes it; the kernel takes no change of chains in the same
            # transaction.
            self.run(f"add table {self.name}\n")

    def listing(self, written: Collection[str] = ()) -> Listing:
        """What the table has; the same object until any program changes any table.

        Args:
            written: chains that were written a moment ago, which are shown as they should be.

        Raises:
            KernelError: the kernel refused, or another program owns the table.
        """
        # Asked for first: what changes while the table is listed is found by the next look.
        generation = self.socket.generation()
        # Most looks end here: 0.7 ms for 250 pods, and not the 9 of a listing.
        if generation != self._generation or written:
            # By a message: nft 1.0.6 shows flags as whatever is in its memory.
            request = nf_tables.get_table(self._short_name, self._family)
            (state,) = self.socket.query_each([request], nf_tables.table_of, [errno.ENOENT])
            is_dormant = state is not None and state[1]
            objects = self._table_objects(is_dormant=is_dormant)
            self._fingerprints.learn(objects, written)
            self._listing = Listing.of(self._fingerprints.compared(objects))
            self._listing.is_dormant = is_dormant
            self._generation = generation
        return self._listing

    def _table_objects(self, *, is_dormant: bool) -> list[dict[str, Any]]:
        try:
            return self.objects("table")
        except KernelError:
            if not is_dormant:
                raise
        # What nft shows as its flag was no text, and all it has shown.
        self.run(f"add table {self.name}\n")
        return self.objects("table")

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """What nft lists, such as `quotas table`; nothing without the table."""
        with Ignoring(errno.ENOENT):
            return self._nft.listing(f"list {kind} {self.name}")
        return []

    def counters(self) -> list[tuple[str, int, int]]:
        """Name, packets and bytes of each counter."""
        request = nf_tables.list_counters(self._short_name)
        return self.socket.list_whole(request, nf_tables.counter_of)

    def close(self) -> None:
        self._nft.close()
        self.socket.close()


def remove(table: str) -> bool:
    """Remove a table; whether it was there."""
    family, name = table.split()
    with Ignoring(errno.ENOENT, *NO_NF_TABLES), NftSocket() as channel:
        channel.commit([nf_tables.delete_table(name, _FAMILIES[family])])
        return True
    return False
