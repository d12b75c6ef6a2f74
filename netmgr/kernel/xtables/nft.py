"""The tables of iptables' nf_tables variant (`ip mangle`, `ip6 nat`), without starting a program.

`iptables` on today's distributions is a client of nf_tables. Its tables keep their old names, their
chains keep the old hooks and priorities, and nft_compat runs the extensions of xtables
(iptables-nft(8), <linux/netfilter/nf_tables.h>). This module reads and writes the same form, so
`iptables -t mangle -L -v` shows our rules, and a reading lists only the chains it needs. A change
of any number of tables is one transaction. The kernel refuses it if another program changed
nf_tables since the reading.
"""

from __future__ import annotations

import errno
from collections import Counter as Sums
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import (
    NFGENMSG,
    NLM_F_CREATE,
    NLM_F_DUMP,
    Operation,
    attribute,
    attributes,
)
from netmgr.kernel.nf_tables import (
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NLM_F_APPEND,
    message,
    number,
    text,
)
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables import entries, expressions
from netmgr.kernel.xtables.entries import Entry
from netmgr.kernel.xtables.tables import Opener
from netmgr.prefixes import Family

NFPROTO = {Family.V4: NFPROTO_IPV4, Family.V6: NFPROTO_IPV6}
_NFT_FAMILY = {Family.V4: "ip", Family.V6: "ip6"}
TABLES = ("raw", "mangle", "nat", "filter", "security")
"""All that iptables knows."""
HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
# Those of nf_ip_hook_priorities (<linux/netfilter_ipv4.h>), where xtables' own tables are too.
_PRIORITIES = {"raw": -300, "mangle": -150, "filter": 0, "security": 50}
_NAT_PRIORITIES = {"PREROUTING": -100, "INPUT": 100, "OUTPUT": -100, "POSTROUTING": 100}
_TABLE_NAME, _TABLE_USE, _TABLE_USERDATA = 1, 3, 6
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_USE, _CHAIN_TYPE, _CHAIN_USERDATA = 1, 3, 4, 6, 7, 12
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_TABLE, _RULE_CHAIN, _RULE_HANDLE, _RULE_EXPRESSIONS, _RULE_COMPAT, _RULE_USERDATA = (
    1,
    2,
    3,
    4,
    5,
    7,
)
_COMPAT_PROTOCOL, _COMPAT_FLAGS = 1, 2
_COMPAT_INVERTED = 2
_USERDATA_COMMENT = 0
_MADE_BY_US = bytes([_USERDATA_COMMENT, 7]) + b"netmgr\0"
"""The comment of built-in chains and tables that were not there before us."""
_NLM_F_NONREC = 0x100
"""Refuse to delete what has something in it (<linux/netlink.h>)."""
_COMPAT_GET = 11 << 8
"""NFNL_SUBSYS_NFT_COMPAT, and NFNL_MSG_COMPAT_GET."""
_NAME, _REVISION, _TYPE = 1, 2, 3
_IS_MATCH = 0
_ATTEMPTS = 10


class _Base(NamedTuple):
    kind: str
    hook: int
    priority: int


def _base(table: str, chain: str) -> _Base | None:
    """Where iptables has a built-in chain; None for any other chain."""
    if chain not in HOOKS or (table == "raw" and chain not in ("PREROUTING", "OUTPUT")):
        return None
    # Only in a chain of type `route` does the kernel route a packet again whose mark was changed.
    kind = (
        "nat" if table == "nat" else "route" if (table, chain) == ("mangle", "OUTPUT") else "filter"
    )
    priority = _NAT_PRIORITIES.get(chain, 0) if table == "nat" else _PRIORITIES[table]
    return _Base(kind, HOOKS.index(chain), priority)


class NftTable:
    """One table of one family.

    Changes are collected in `operations`; later readings of the same object include them.
    """

    def __init__(self, channel: NftSocket, name: str, family: Family) -> None:
        self._channel = channel
        self._name = name
        self._where = f"{_NFT_FAMILY[family]} {name}"
        self._chains: dict[str, list[Entry] | None] = {}
        self.family = family
        self.operations: list[Operation] = []
        self._refuse_if_dormant()

    def entries(self, chain: str) -> list[Entry]:
        """The chain's rules in order; none if there is no such chain."""
        return list(self._read(chain) or ())

    def has_chain(self, chain: str) -> bool:
        """Whether the table has this chain."""
        return self._read(chain) is not None

    def create_chain(self, chain: str) -> None:
        """Make an empty chain, and before it the table."""
        body = attribute(_CHAIN_TABLE, text(self._name)) + attribute(_CHAIN_NAME, text(chain))
        if base := _base(self._name, chain):
            hook = attribute(_HOOK_NUMBER, number(base.hook)) + attribute(
                _HOOK_PRIORITY, number(base.priority)
            )
            body += attribute(_CHAIN_HOOK, hook) + attribute(_CHAIN_TYPE, text(base.kind))
            body += attribute(_CHAIN_USERDATA, _MADE_BY_US)
        # Of a table that is there already nothing changes, and it stays whosever it is.
        table = attribute(_TABLE_NAME, text(self._name)) + attribute(_TABLE_USERDATA, _MADE_BY_US)
        self._do(nf_tables.NEW_TABLE, table, "add table", NLM_F_CREATE)
        self._do(nf_tables.NEW_CHAIN, body, f"add chain {chain}", NLM_F_CREATE)
        self._chains[chain] = []

    def flush_chain(self, chain: str) -> None:
        """Remove the chain's rules."""
        self._do(nf_tables.DELETE_RULE, self._rule(chain), f"flush chain {chain}")
        self._chains[chain] = []

    def delete_chain(self, chain: str) -> None:
        """Remove an empty chain that nothing jumps to."""
        body = attribute(_CHAIN_TABLE, text(self._name)) + attribute(_CHAIN_NAME, text(chain))
        self._do(nf_tables.DELETE_CHAIN, body, f"delete chain {chain}")
        self._chains[chain] = None

    def append(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's end."""
        self._add(chain, entry, NLM_F_CREATE | NLM_F_APPEND)

    def insert(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's head."""
        self._add(chain, entry, NLM_F_CREATE)

    def delete(self, chain: str, entry: Entry) -> None:
        """Remove this rule."""
        body = self._rule(chain) + attribute(_RULE_HANDLE, entry.handle.to_bytes(8, "big"))
        self._do(nf_tables.DELETE_RULE, body, f"delete rule of {chain}")
        if held := self._chains[chain]:
            held.remove(entry)

    def _add(self, chain: str, entry: Entry, flags: int) -> None:
        if not self.has_chain(chain):
            # Built in for iptables, but not in use yet.
            self.create_chain(chain)
        encoded = b"".join(one.encode() for one in expressions.encode(entry))
        body = self._rule(chain) + attribute(_RULE_EXPRESSIONS, encoded)
        protocol, is_inverted = expressions.protocol_of(entry)
        if protocol:
            # Many extensions work on one protocol alone, and xt_check_match asks for which one the
            # rule is; nft_compat knows it from here.
            compat = attribute(_COMPAT_PROTOCOL, number(protocol))
            body += attribute(
                _RULE_COMPAT,
                compat + attribute(_COMPAT_FLAGS, number(_COMPAT_INVERTED * is_inverted)),
            )
        self._do(nf_tables.NEW_RULE, body, f"add rule to {chain}", flags)

    def _rule(self, chain: str) -> bytes:
        return attribute(_RULE_TABLE, text(self._name)) + attribute(_RULE_CHAIN, text(chain))

    def _do(self, kind: int, body: bytes, what: str, flags: int = 0) -> None:
        self.operations.append(self._message(kind, body, what, flags))

    def _message(self, kind: int, body: bytes, what: str, flags: int = 0) -> Operation:
        return message(kind, body, f"{what} in table {self._where}", flags, NFPROTO[self.family])

    def _read(self, chain: str) -> list[Entry] | None:
        if chain not in self._chains:
            self._chains[chain] = self._listed(chain) if self._exists(chain) else None
        return self._chains[chain]

    def _exists(self, chain: str) -> bool:
        body = attribute(_CHAIN_TABLE, text(self._name)) + attribute(_CHAIN_NAME, text(chain))
        answer = _asked(
            self._channel, self._message(nf_tables.GET_CHAIN, body, f"look for chain {chain}")
        )
        if answer is None:
            return False
        place = attributes(attributes(answer, NFGENMSG.size).get(_CHAIN_HOOK, b""), 0)
        base = _base(self._name, chain)
        wanted = (
            {_HOOK_NUMBER: number(base.hook), _HOOK_PRIORITY: number(base.priority)} if base else {}
        )
        if any(place.get(kind) != value for kind, value in wanted.items()):
            raise KernelError(
                f"read table {self._where}", details=f"chain {chain} is not where iptables has it"
            )
        return True

    def _listed(self, chain: str) -> list[Entry]:
        request = self._message(
            nf_tables.GET_RULE, self._rule(chain), f"list chain {chain}", NLM_F_DUMP
        )
        return self._channel.list_whole(request, lambda body: entry_of(body, self.family))

    def _refuse_if_dormant(self) -> None:
        body = attribute(_TABLE_NAME, text(self._name))
        answer = _asked(
            self._channel, self._message(nf_tables.GET_TABLE, body, "look for the table")
        )
        if answer is not None and nf_tables.table_of(answer)[1]:
            raise KernelError(
                f"read table {self._where}",
                details="it is dormant, so that no rule of it is in effect; "
                f"wake it with: nft add table {self._where}",
            )


class NftTables:
    """The tables of the namespace it is made in."""

    name = "iptables-nft"

    def __init__(self) -> None:
        self._channel = NftSocket()

    @contextmanager
    def opened(self, name: str, family: Family) -> Iterator[NftTable]:
        """Look at a table; it comes into being when something is put into it."""
        yield NftTable(self._channel, name, family)

    def change(self, edit: Callable[[Opener], None]) -> None:
        """Change tables in one transaction, which is based on a reading that is still true."""

        def edited() -> list[Operation]:
            tables: list[NftTable] = []

            @contextmanager
            def opened(name: str, family: Family) -> Iterator[NftTable]:
                tables.append(NftTable(self._channel, name, family))
                yield tables[-1]

            edit(opened)
            return [operation for table in tables for operation in table.operations]

        self._commit(edited)

    def leave(self) -> None:
        """Remove the built-in chains and the tables that we made, if they are empty."""
        self._commit(lambda: [one for family in Family for one in self._left_empty(family)])

    def _left_empty(self, family: Family) -> Iterator[Operation]:
        gone: Sums[bytes] = Sums()
        listing = message(nf_tables.GET_CHAIN, b"", "list chains", NLM_F_DUMP, NFPROTO[family])
        for body in self._channel.dump(listing, bytes):
            chain = attributes(body, NFGENMSG.size)
            # `use` counts a chain's rules, and the jumps to it.
            if chain.get(_CHAIN_USERDATA) == _MADE_BY_US and not any(chain[_CHAIN_USE]):
                table, name = chain[_CHAIN_TABLE], chain[_CHAIN_NAME]
                gone[table] += 1
                where = attribute(_CHAIN_TABLE, table) + attribute(_CHAIN_NAME, name)
                yield message(
                    nf_tables.DELETE_CHAIN, where, "delete chain", _NLM_F_NONREC, NFPROTO[family]
                )
        listing = message(nf_tables.GET_TABLE, b"", "list tables", NLM_F_DUMP, NFPROTO[family])
        for body in self._channel.dump(listing, bytes):
            found = attributes(body, NFGENMSG.size)
            name, is_empty = (
                found[_TABLE_NAME],
                int.from_bytes(found[_TABLE_USE], "big") == gone[found[_TABLE_NAME]],
            )
            if found.get(_TABLE_USERDATA) == _MADE_BY_US and is_empty:
                where = attribute(_TABLE_NAME, name)
                yield message(
                    nf_tables.DELETE_TABLE, where, "delete table", _NLM_F_NONREC, NFPROTO[family]
                )

    def _commit(self, make: Callable[[], list[Operation]]) -> None:
        """Commit the operations from `make`, which is called again if anything changed meanwhile.

        Raises:
            TryAgainLater: another program keeps changing rules of ours.
            KernelError: the kernel refused.
        """
        for _ in range(_ATTEMPTS - 1):
            # The generation is read first: a change that comes during the reading is noticed.
            generation = self._channel.generation()
            operations = make()
            try:
                self._send(operations, generation)
            except KernelError as error:
                if error.errno != errno.ERESTART:
                    raise
            else:
                return
        # Where other programs never pause, the last attempt does not insist on a generation. Rules
        # are named by their handles and chains by their names, which are ours, so nothing of
        # theirs is touched; at worst the next look finds something of ours to repair.
        operations = make()
        try:
            self._send(operations, None)
        except KernelError as error:
            if error.errno not in (errno.ENOENT, errno.EBUSY):
                raise
            raise TryAgainLater(
                "another program changes netmgr's rules of nf_tables all the time"
            ) from None

    def _send(self, operations: list[Operation], generation: int | None) -> None:
        if operations:
            self._channel.commit(operations, generation)

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()


def is_supported() -> bool:
    """Whether the kernel has nft_compat, and the extension `set`, which looks into ipsets."""
    name, revision = (
        attribute(_NAME, text("set")),
        attribute(_REVISION, number(entries.SET_REVISION)),
    )
    body = NFGENMSG.pack(NFPROTO_IPV4, 0, 0) + name + revision + attribute(_TYPE, number(_IS_MATCH))
    with NftSocket() as channel:
        try:
            return bool(
                channel.query(Operation("look for the extension set", _COMPAT_GET, 0, body), bytes)
            )
        except KernelError:
            return False


def _asked(channel: NftSocket, request: Operation) -> bytes | None:
    try:
        return channel.query(request, bytes)
    except KernelError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def entry_of(body: bytes, family: Family) -> Entry:
    """A listed rule."""
    found = attributes(body, NFGENMSG.size)
    _, _, listed_expressions = nf_tables.rule_of(body)
    comment = _comment(found.get(_RULE_USERDATA, b""))
    entry = expressions.decode(listed_expressions, family, comment)
    return replace(entry, handle=int.from_bytes(found[_RULE_HANDLE], "big"))


def _comment(userdata: bytes) -> str:
    """The comment in a rule's user data, which is a list of type, length and value (libnftnl)."""
    at = 0
    while at + 2 <= len(userdata):
        kind, length = userdata[at], userdata[at + 1]
        if kind == _USERDATA_COMMENT:
            return userdata[at + 2 : at + 2 + length].rstrip(b"\0").decode(errors="replace")
        at += 2 + length
    return ""
