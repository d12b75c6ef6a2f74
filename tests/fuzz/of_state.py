"""What a machine may give back damaged: small files, ledger, leases; and the agent's answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cni import installed
from netmgr.agent.network import known_ranges
from netmgr.agent.queries import Readers
from netmgr.api import client
from netmgr.api.snapshot import VERSION
from netmgr.documents.node import NodeDocument
from netmgr.errors import (
    NetmgrError,
    QueryFailed,
    RequestError,
    SetupError,
    StateError,
    TryAgainLater,
)
from netmgr.ipam.store import LeaseStore
from netmgr.ledger import mark
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.model import Attachment, AttachmentKey, Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules import choose
from netmgr.sqlite_file import FAILURES
from tests.builders import NODE_KEYS
from tests.fuzz.mutation import Shape
from tests.fuzz.target import file_of, folder, target

SMALL = "nftables iptables-nft iptables-legacy iptables auto fd0000000000000000 -1 +5 1_000 0x10"
RECORD = "bin_dir conf_dir name network settings /opt/cni/bin /etc/cni/net.d netmgr .. \\u0000"
QUERIES = """
version query health snapshot pods explain address nat services audit usage quotas problems error
"""

ADDRESS = Address.parse("10.0.0.1")


@target(Shape.TEXT, rounds=1000, longest=300, tokens=SMALL)
def small_files(data: bytes) -> None:
    """A small file of the state is refused by name, or what it says can be used and kept."""
    with file_of(data, choose.FILE_NAME) as path:
        _mark(path.with_name("ledger-mark"), data)
        try:
            found = choose.remembered(path.parent)
        except StateError as error:
            assert choose.FILE_NAME in error.message
            return
        assert found is not None
        choose.remember(found, path.parent)
        assert choose.remembered(path.parent) is found


def _mark(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    synced = mark.read(path)
    if synced is None:
        return
    # It goes into a set of the kernel, and back to the file.
    assert mark.Mark.of(Address.unpack(synced.mark.address.packed)) == synced.mark
    mark.write(path, synced)
    assert mark.read(path) == synced


DOCUMENT = NodeDocument.model_validate(
    NODE_KEYS | {"node": {"name": "n", "addresses": ["10.0.0.4"]}, "range_source": "azure"}
)


@target(Shape.JSON, rounds=1500, longest=2048, tokens=f"{RECORD} source ranges azure")
def known_ranges_file(data: bytes) -> None:
    """The ranges of the last start are those of this source, or none."""
    with file_of(data, known_ranges.FILE_NAME) as path:
        document = DOCUMENT.model_copy(update={"state_dir": path.parent})
        found = known_ranges._recall(document)
        assert all(str(block) for block in found)


@target(Shape.JSON, rounds=1500, longest=2048, tokens=RECORD)
def installation_record(data: bytes) -> None:
    """A record of an installation is a `StateError`, or why runtimes do not find the plugin."""
    with folder() as root:
        path = installed.record_path(root)
        path.write_bytes(data)
        with suppress(StateError, SetupError):
            record = installed.durable.read(path, installed.Record.parse)
            assert record
            assert installed.Record.parse(record.encoded().decode()).network == record.network
            assert all(installed.problems(record, root))


@target(Shape.JSON, rounds=400, longest=4096, tokens=RECORD)
def network_configuration(data: bytes) -> None:
    """Whatever is where the plugin's configuration was, the reasons are texts."""
    with folder() as root:
        for below in ("opt/cni/bin", "etc/cni/net.d"):
            (root / below).mkdir(parents=True)
        (root / "opt/cni/bin/netmgr").touch(0o755)
        (root / "etc/cni/net.d/10-netmgr.conflist").write_bytes(data)
        record = installed.Record(
            Path("/opt/cni/bin"), Path("/etc/cni/net.d"), "netmgr", "netmgr", {}
        )
        assert all(installed.problems(record, root))


@target(Shape.JSON, rounds=1200, longest=4096, tokens=QUERIES)
def query(data: bytes) -> None:
    """Every line of a reader is answered by one JSON object: what was asked for, or why not."""
    answered = json.loads(_readers().answer(data))
    assert answered["version"] == VERSION
    assert isinstance(answered.get("error", ""), str)
    encoded = bytearray(json.dumps(answered).encode())
    with suppress(TryAgainLater, RequestError):
        assert client._understood(Path("socket"), encoded) == answered


def _readers() -> Readers:
    pods = Attachment(
        AttachmentKey("c", "eth0"), PodRef("ns", "pod", "uid"), (ADDRESS,), "nm0", "/n", 0.0
    )
    component = SimpleNamespace(
        queries=lambda: {"nat": _echo, "quotas": _echo},
        snapshot=lambda _: None,
        problems=lambda: (),
    )
    agent: Any = SimpleNamespace(
        document=NodeDocument.model_validate(
            NODE_KEYS
            | {"node": {"name": "n", "addresses": ["10.0.0.4"]}, "ranges": ["10.0.1.0/28"]}
        ),
        clock=SimpleNamespace(now=lambda: 0.0),
        config=Path("/nonexistent/node.yaml"),
        attachments=lambda: [pods],
        components=[component],
        health=SimpleNamespace(rebuilds=0, failing={}, repairs=list),
        get=lambda _: SimpleNamespace(accounts=SimpleNamespace(await_turn=lambda: None)),
        serves=True,
        health_fault=lambda: None,
    )
    readers = Readers(agent)
    agent.components.append(readers)
    return readers


def _echo(request: Any) -> object:
    return {"version": VERSION, "services": bool(request.get("services"))}


@target(Shape.JSON, rounds=3000, longest=8192, tokens=QUERIES)
def agent_answer(data: bytes) -> None:
    """What comes from the socket is one of the documented errors, or a document."""
    with patch.object(client, "_exchange", lambda *_: bytearray(data)):
        try:
            found = client.read_snapshot(Path("socket"))
        except (SetupError, TryAgainLater, RequestError, QueryFailed):
            return
    assert found["version"] == VERSION


ODD_VALUES = (
    *("NULL", "''", "'x'", "-1", "0", "1e400", "9223372036854775807", "x'00ff'"),
    *("'[[\"a\", Infinity]]'", "'é'"),
)


@target(Shape.BYTES, rounds=150, longest=400)
def ledger_file(data: bytes) -> None:
    """A damaged ledger is an error of ours that names it, or a ledger that goes on."""
    _damaged("ledger.db", data, _make_ledger, _use_ledger)


@target(Shape.BYTES, rounds=150, longest=400)
def leases_file(data: bytes) -> None:
    """A damaged file of leases is an error of ours that names it, or leases that can be used."""
    _damaged("ipam.db", data, _make_leases, _use_leases)


_whole: dict[str, bytes] = {}


def _damaged(
    name: str, data: bytes, make: Callable[[Path], None], use: Callable[[Path], None]
) -> None:
    with folder() as made:
        path = made / name
        if name not in _whole:
            make(path)
            _whole[name] = path.read_bytes()
        path.write_bytes(_whole[name])
        _damage(path, data)
        try:
            use(path)
        except NetmgrError as error:
            assert str(path) in error.message


def _damage(path: Path, data: bytes) -> None:
    """Each four bytes are a change: a byte of the file, or a value of a row."""
    for at in range(0, len(data) - 3, 4):
        first, second, third, value = data[at : at + 4]
        if first & 0x80:
            with suppress(*FAILURES), closing(sqlite3.connect(path)) as connection:
                _set_value(connection, first & 0x7F, second, third, value)
        else:
            content = bytearray(path.read_bytes())
            content[(first << 16 | second << 8 | third) % len(content)] = value
            path.write_bytes(content)


def _set_value(
    connection: sqlite3.Connection, table: int, column: int, row: int, value: int
) -> None:
    connection.text_factory = bytes
    tables = [
        each[0].decode()
        for each in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    ]
    name = tables[table % len(tables)]
    columns = [each[1].decode() for each in connection.execute(f"PRAGMA table_info({name})")]
    chosen = columns[column % len(columns)]
    (count,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608  a name of ours
    if not count:
        return
    where = f"{columns[0]} = (SELECT {columns[0]} FROM {name} LIMIT 1 OFFSET {row % count})"  # noqa: S608  as above
    odd = ODD_VALUES[value % len(ODD_VALUES)]
    connection.execute(f"UPDATE OR REPLACE {name} SET {chosen} = {odd} WHERE {where}")  # noqa: S608  as above
    connection.commit()


CLOCK = SimpleNamespace(now=lambda: 1e9, monotonic=lambda: 1000.0)
POD = PodRef("ns", "pod", "uid")
COUNTER = Counter.of_pod(ADDRESS, Traffic.INTERNET_OUT)


def _ledger(path: Path) -> Ledger:
    return Ledger(LedgerStore(path), clock=CLOCK, linger_seconds=60.0, boot_id="boot")


def _make_ledger(path: Path) -> None:
    ledger = _ledger(path)
    ledger.begin([COUNTER], POD)
    ledger.begin([Counter("FORWARD", Family.V4, Traffic.INTERNET_IN)], None)
    ledger.post([Sample(COUNTER, 10, 1)])
    ended = [Counter.of_pod(Address.parse("10.0.0.2"), Traffic.INTERNET_IN)]
    ledger.begin(ended, PodRef("ns", "ended", "u2"))
    ledger.end(ended)
    ledger.examine([], has_counters=False)
    ledger.close()


def _use_ledger(path: Path) -> None:
    ledger = _ledger(path)
    try:
        ledger.examine([], has_counters=False)
        ledger.begin([COUNTER], POD)
        ledger.post([Sample(COUNTER, 20, 2)])
        assert ledger.mark is None or ledger.mark.address.packed
        assert ledger.totals()
        ledger.sweep()
        ledger.checkpoint()
    finally:
        ledger.close()


def _make_leases(path: Path) -> None:
    store = LeaseStore(path)
    first, second, released = (AttachmentKey(name, "eth0") for name in ("c" * 64, "d" * 64, "e"))
    v6, third = Address.parse("fd00::1"), Address.parse("10.0.0.3")
    store.hold(Attachment(first, POD, (ADDRESS,), "nm0", "/run/netns/a", 5.0))
    rates = (("all-in", 10**6),)
    store.hold(Attachment(second, POD, (v6,), "nm1", "/run/netns/b", 6.0, rates))
    over = Attachment(released, POD, (third,), "nm2", "/n", 7.0)
    store.hold(over)
    store.release(over, 8.0)
    store.add_tombstone(AttachmentKey("f", "eth0"), 9.0)
    store.begin_boot("boot")
    store.checkpoint()
    store.close()


def _use_leases(path: Path) -> None:
    store = LeaseStore(path)
    found = store.remembered()
    try:
        for attachment in found.attachments.values():
            assert all(str(address) for address in attachment.addresses)
            assert attachment.started_at >= float("-inf")
        assert all(
            at >= float("-inf") for at in (*found.cooldown.values(), *found.tombstones.values())
        )
        store.add_tombstone(AttachmentKey("new", "eth0"), 1.0)
    finally:
        store.close()
