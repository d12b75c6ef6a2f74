"""Reads and changes the tables of either variant of iptables, by iptables' own programs."""

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
from netmgr.kernel.netlink import NFGENMSG, NLM_F_DUMP, Operation, encoded, number
from netmgr.kernel.nf_tables import FAMILY_NAMES, NFPROTO_IPV4, NFPROTO_IPV6
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables import libiptc, saved
from netmgr.kernel.xtables.saved import NO_TABLE, SavedTable
from netmgr.prefixes import Family

_NOT_AS_IPTABLES = (
    " is not where iptables has it, or has rules that iptables has no words for; "
    "look with: nft list"
)
BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
# All that iptables knows.
TABLES = ("raw", "mangle", "nat", "filter", "security")
# The lock of the legacy tables, found as iptables finds it (XT_LOCK_NAME).
LOCK_PATH = Path(os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock"))
LEGACY, NFT = "iptables-legacy", "iptables-nft"

_NFPROTO = {Family.V4: NFPROTO_IPV4, Family.V6: NFPROTO_IPV6}
# The longest time for a program, beside what it waits for the lock.
_SECONDS = 60.0
# iptables' RESOURCE_PROBLEM.
_LOCKED = 4
# What a restore says about a table that is no longer as the script expects it.
_CHANGED = re.compile(
    f"{os.strerror(errno.EAGAIN)}|line \\d+ failed|index of \\w+ too big|does not exist",
    re.IGNORECASE,
)
# Of the thread, which may be in another namespace than the process (`/proc/self`).
_PROC_NET = Path("/proc/thread-self/net")
# NFNL_SUBSYS_NFT_COMPAT, and NFNL_MSG_COMPAT_GET.
_COMPAT_GET = 11 << 8
_NAME, _REVISION, _TYPE, _IS_MATCH = 1, 2, 3, 0
# Of the match `set`: one that may ask for counters (Linux 3.16).
_SET_REVISION = 4


class Changed(TryAgainLater):
    """Another program changed the tables since they were read; nothing of the table was done."""


class Variant:
    """The tables of a variant, `LEGACY` or `NFT`, in the namespace of the calling thread.

    A change waits `lock_wait_seconds` for the lock of the legacy tables. SetupError if iptables'
    programs are not installed.
    """

    def __init__(self, name: str, lock_wait_seconds: int = 5) -> None:
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
        """A table, empty if it is not there; a legacy one that was never used is made by this."""
        if self.name == NFT and _nft_tables(family).get(name):
            dormant = "it is dormant, so that no rule of it is in effect; wake it with: nft add"
            raise _unreadable(name, family, dormant)
        tables, unlistable = self._saved(family, "-t", name)
        table = tables.get(name, NO_TABLE)
        elsewhere = [f"chain {chain}" for chain in BUILT_IN if table.policies.get(chain) == "-"]
        if name in unlistable:
            elsewhere.append("a chain of it")
        if elsewhere:
            raise _unreadable(name, family, elsewhere[0] + _NOT_AS_IPTABLES)
        return table

    def tables(self, family: Family, needed: Collection[str] = ()) -> Mapping[str, SavedTable]:
        """All tables that iptables can show; KernelError if a `needed` one is none of them."""
        # Neither /proc nor netlink nor iptables-save without `-t` makes one.
        present = legacy_tables(family) if self.name == LEGACY else _nft_tables(family)
        if not any(name in TABLES for name in present):
            return {}
        tables, unlistable = self._saved(family)
        for name in unlistable & frozenset(needed) - tables.keys():
            raise _unreadable(name, family, "it" + _NOT_AS_IPTABLES)
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
        """
        # One script is one change for each of its tables: both variants commit at `COMMIT`, and
        # leave the counts of other rules as they are. But a chain that it declares (`:CHAIN -
        # [0:0]`) is emptied, and its counters with it, `--noflush` or not.
        options = ("-w", str(self._wait), "--noflush", "--counters")
        done, reason = self._run(family, "restore", options, script, self._wait + _SECONDS)
        if not done.returncode:
            return
        if done.returncode == _LOCKED and "lock" in reason:
            holder = f"{LOCK_PATH} is held by another program"
            raise TryAgainLater(f"{holder} for over {self._wait} seconds")
        operation = self.program(family, "restore")
        if _CHANGED.search(reason):
            raise Changed(f"{operation}: another program changed the table meanwhile: {reason}")
        raise KernelError(operation, details=reason)

    def _saved(
        self, family: Family, *options: str
    ) -> tuple[Mapping[str, SavedTable], frozenset[str]]:
        done, reason = self._run(family, "save", ("-c", *options))
        if done.returncode:
            raise KernelError(self.program(family, "save"), details=reason)
        return saved.parse(done.stdout.decode(errors="replace"))

    def _run(
        self,
        family: Family,
        verb: str,
        options: Collection[str],
        stdin: str = "",
        seconds: float = _SECONDS,
    ) -> tuple[programs.Outcome, str]:
        """How a program ended, and what it said about an error."""
        program = self._programs[family, verb]
        try:
            done = programs.run([program, *options], stdin=stdin.encode(), timeout=seconds)
        except programs.TimedOut:
            raise TryAgainLater(f"{program} took over {seconds:g} seconds") from None
        return done, done.stderr.decode(errors="replace").strip()


def legacy_tables(family: Family) -> frozenset[str]:
    """The legacy tables that are there in the calling thread's namespace; asking makes none."""
    path = _PROC_NET / f"{FAMILY_NAMES[_NFPROTO[family]]}_tables_names"
    try:
        return frozenset(path.read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def nft_is_supported() -> bool:
    """Whether the kernel has nft_compat, and the extension `set`, which looks into ipsets."""
    body = NFGENMSG.pack(NFPROTO_IPV4, 0, 0)
    body += encoded({_NAME: "set", _REVISION: number(_SET_REVISION), _TYPE: number(_IS_MATCH)})
    with NftSocket() as channel:
        try:
            channel.query(Operation("look for the extension set", _COMPAT_GET, 0, body), bytes)
        except KernelError:
            return False
    return True


def give_memory_back() -> None:
    """Return the memory of freed copies of tables to the kernel (malloc_trim(3))."""
    # glibc keeps freed memory for later: 100 MB after reading the rules of 10,000 Services. Another
    # C library has no such function.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _unreadable(name: str, family: Family, why: str) -> KernelError:
    where = f"table {FAMILY_NAMES[_NFPROTO[family]]} {name}"
    return KernelError(f"read {where}", details=f"{why} {where}")


def _nft_tables(family: Family) -> Mapping[str, bool]:
    """Names of nf_tables' tables of a family, and whether they are switched off."""
    kind = nf_tables.GET_TABLE
    request = nf_tables.message(kind, b"", "list tables", NLM_F_DUMP, _NFPROTO[family])
    with NftSocket() as channel:
        return dict(channel.dump(request, nf_tables.table_of))
