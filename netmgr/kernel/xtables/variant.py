"""Reads and changes the tables of either variant of iptables, by iptables' own programs.

A chain that a script declares (`:CHAIN - [0:0]`) is emptied, and its counters with it, `--noflush`
or not. So a chain whose rules count is changed rule by rule. One script is one change for each of
its tables: both variants commit at `COMMIT`, and leave the counts of other rules as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from netmgr import programs
from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import NFGENMSG, NLM_F_DUMP, Operation, attribute
from netmgr.kernel.nf_tables import NFPROTO_IPV4, NFPROTO_IPV6, message, number, text
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables import libiptc, saved
from netmgr.kernel.xtables.saved import NO_TABLE, SavedTable
from netmgr.prefixes import Family

BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
TABLES = ("raw", "mangle", "nat", "filter", "security")
"""All that iptables knows."""
LOCK_PATH = Path(os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock"))
"""The lock of the legacy tables, found as iptables finds it (XT_LOCK_NAME)."""
LEGACY, NFT = "iptables-legacy", "iptables-nft"

_NFPROTO = {Family.V4: NFPROTO_IPV4, Family.V6: NFPROTO_IPV6}
_NFT_FAMILY = {Family.V4: "ip", Family.V6: "ip6"}
_SECONDS = 60.0
"""The longest time for a program, beside what it waits for the lock."""
_LOCKED = 4
"""iptables' RESOURCE_PROBLEM."""
_CHANGED = re.compile(
    f"{os.strerror(errno.EAGAIN)}|line \\d+ failed|index of \\w+ too big|does not exist",
    re.IGNORECASE,
)
"""What a restore says about a table that is no longer as the script expects it."""
# Of the thread, which may be in another namespace than the process (`/proc/self`).
_NAMES = {
    Family.V4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.V6: Path("/proc/thread-self/net/ip6_tables_names"),
}
_COMPAT_GET = 11 << 8
"""NFNL_SUBSYS_NFT_COMPAT, and NFNL_MSG_COMPAT_GET."""
_NAME, _REVISION, _TYPE, _IS_MATCH = 1, 2, 3, 0
_SET_REVISION = 4
"""Of the match `set`: one that may ask for counters (Linux 3.16)."""


class Changed(TryAgainLater):
    """Another program changed the tables since they were read; nothing of the table was done."""


class Variant:
    """The tables of one variant, in the namespace of the calling thread.

    Args:
        name: `LEGACY` or `NFT`.
        lock_wait_seconds: how long a change waits for the lock of the legacy tables.
    """

    def __init__(self, name: str, lock_wait_seconds: int = 5) -> None:
        """Find the programs.

        Raises:
            SetupError: they are not installed.
        """
        self.name = name
        self._wait = lock_wait_seconds
        self._programs = {
            (family, verb): programs.locate(self.program(family, verb), "iptables")
            for family in Family
            for verb in ("save", "restore")
        }

    def program(self, family: Family, verb: str = "") -> str:
        """Name of one of the variant's programs, for example `ip6tables-nft-save`."""
        name = self.name if family is Family.V4 else self.name.replace("ip", "ip6", 1)
        return f"{name}-{verb}" if verb else name

    def table(self, name: str, family: Family) -> SavedTable:
        """A table, empty if it is not there; reading a legacy table that was never used makes it.

        Raises:
            KernelError: it cannot be read as iptables has it.
        """
        if self.name == NFT:
            _refuse_if_dormant(name, family)
        tables, unlistable = self._saved(family, "-t", name)
        table = tables.get(name, NO_TABLE)
        elsewhere = [chain for chain in BUILT_IN if table.policies.get(chain) == "-"]
        if elsewhere or name in unlistable:
            raise _unlistable(
                name, family, f"chain {elsewhere[0]}" if elsewhere else "a chain of it"
            )
        return table

    def tables(self, family: Family, needed: Collection[str] = ()) -> Mapping[str, SavedTable]:
        """All tables that exist and that iptables can show; asking makes none.

        Raises:
            KernelError: one that is `needed` cannot be shown.
        """
        present = legacy_tables(family) if self.name == LEGACY else _nft_tables(family)
        if not any(name in TABLES for name in present):
            return {}
        tables, unlistable = self._saved(family)
        for name in unlistable & frozenset(needed) - tables.keys():
            raise _unlistable(name, family, "it")
        return tables

    def counts(self, name: str, family: Family) -> SavedTable:
        """A table as `table` reads it, sooner where libiptc can read it in process."""
        if self.name == LEGACY:
            return libiptc.read(name, family, lambda: self.table(name, family))
        return self.table(name, family)

    def all_counts(self, family: Family) -> Mapping[str, SavedTable]:
        """All tables that `tables` gives, sooner where libiptc can read them in process."""
        if self.name == LEGACY:
            return {name: self.counts(name, family) for name in legacy_tables(family)}
        return self.tables(family)

    def run_script(self, script: str, family: Family) -> None:
        """Carry out a script of `iptables-restore --noflush --counters`.

        Raises:
            Changed: a table is no longer as the script expects it.
            TryAgainLater: another program kept the lock.
            KernelError: the kernel refused.
        """
        program = self._programs[family, "restore"]
        command = [program, "-w", str(self._wait), "--noflush", "--counters"]
        done = self._run(command, script, self._wait + _SECONDS)
        if not done.returncode:
            return
        reason = done.stderr.decode(errors="replace").strip()
        if done.returncode == _LOCKED and "lock" in reason:
            raise TryAgainLater(
                f"{LOCK_PATH} is held by another program for over {self._wait} seconds"
            )
        operation = self.program(family, "restore")
        if _CHANGED.search(reason):
            raise Changed(f"{operation}: another program changed the table meanwhile: {reason}")
        raise KernelError(operation, details=reason)

    def _saved(
        self, family: Family, *options: str
    ) -> tuple[Mapping[str, SavedTable], frozenset[str]]:
        done = self._run([self._programs[family, "save"], "-c", *options], "", _SECONDS)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise KernelError(self.program(family, "save"), details=reason)
        return saved.parse(done.stdout.decode(errors="replace"))

    def _run(self, command: list[str], stdin: str, seconds: float) -> programs.Outcome:
        try:
            return programs.run(command, stdin=stdin.encode(), timeout=seconds)
        except programs.TimedOut:
            raise TryAgainLater(f"{command[0]} took over {seconds:g} seconds") from None


def legacy_tables(family: Family) -> frozenset[str]:
    """The legacy tables that are there in the calling thread's namespace; asking makes none."""
    try:
        return frozenset(_NAMES[family].read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def nft_is_supported() -> bool:
    """Whether the kernel has nft_compat, and the extension `set`, which looks into ipsets."""
    name, revision = attribute(_NAME, text("set")), attribute(_REVISION, number(_SET_REVISION))
    body = NFGENMSG.pack(NFPROTO_IPV4, 0, 0) + name + revision + attribute(_TYPE, number(_IS_MATCH))
    with NftSocket() as channel:
        try:
            return bool(
                channel.query(Operation("look for the extension set", _COMPAT_GET, 0, body), bytes)
            )
        except KernelError:
            return False


def give_memory_back() -> None:
    """Return the memory of freed copies of tables to the kernel (malloc_trim(3))."""
    # glibc keeps freed memory for later: 100 MB after reading the rules of 10,000 Services.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _unlistable(name: str, family: Family, part: str) -> KernelError:
    where = f"{_NFT_FAMILY[family]} {name}"
    return KernelError(
        f"read table {where}",
        details=f"{part} is not where iptables has it, or has rules that iptables has no words "
        f"for; look with: nft list table {where}",
    )


def _nft_tables(family: Family) -> Mapping[str, bool]:
    """Names of nf_tables' tables of a family, and whether they are switched off."""
    request = message(nf_tables.GET_TABLE, b"", "list tables", NLM_F_DUMP, _NFPROTO[family])
    with NftSocket() as channel:
        return dict(channel.dump(request, nf_tables.table_of))


def _refuse_if_dormant(name: str, family: Family) -> None:
    if _nft_tables(family).get(name):
        where = f"{_NFT_FAMILY[family]} {name}"
        raise KernelError(
            f"read table {where}",
            details="it is dormant, so that no rule of it is in effect; "
            f"wake it with: nft add table {where}",
        )
