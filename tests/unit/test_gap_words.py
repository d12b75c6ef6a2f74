"""Every place that tells people of a gap has the same line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from netmgr.agent.health import doctor
from netmgr.agent.health.doctor import assumed
from netmgr.api.client import read_snapshot
from netmgr.api.gaps import described
from tests.fakes.agent_socket import agent, canned, snapshot
from tests.fakes.exporter_port import get, serving

FLUSHED = {
    "reason": "removed",
    "count": 1,
    "seconds": 1.25,
    "bytes": 1234,
    "since": 1_000_000_000.0,
    "last": 1_000_000_001.0,
    "concerned": 36,
    "counters": ["10.0.0.1 internet-in", "10.0.0.1 internet-out"],
}
LINE = (
    "gap removed: 1 event, 1.2 s, 1,234 bytes known to be lost; the last 2001-09-09T01:46:40Z to "
    "2001-09-09T01:46:41Z, 10.0.0.1 internet-in, 10.0.0.1 internet-out, 34 more"
)


@pytest.mark.parametrize(
    ("gap", "line"),
    [
        (FLUSHED, LINE),
        (FLUSHED | {"concerned": 2}, LINE.removesuffix(", 34 more")),
        (
            {"reason": "reboot", "count": 3, "seconds": 60.0},
            "gap reboot: 3 events, 60.0 s, 0 bytes known to be lost; the last ? to ?",
        ),
    ],
    ids=["of many counters", "of all that are named", "of all counters, undated"],
)
def test_a_gap_is_an_event_with_its_time_and_counters(gap: Any, line: str) -> None:
    assert list(described([gap])) == [line]


def test_reasons_that_never_were_are_left_out() -> None:
    assert list(described(snapshot(1, 1)["gaps"])) == []


@pytest.fixture
def flushed(tmp_path: Path) -> Iterator[Path]:
    answer = snapshot(1, 1) | {"gaps": [FLUSHED], "problems": []}
    with agent(tmp_path / "ledger.sock", canned(answer)):
        yield tmp_path / "ledger.sock"


def test_status_and_doctor_tell_of_it(flushed: Path, netmgr: Callable[..., Any]) -> None:
    code, out, _ = netmgr("node", "status", "--socket", str(flushed))
    assert code == 0
    assert LINE in out.replace("\n", " ")
    document = assumed().model_copy(update={"run_dir": flushed.parent})
    findings = doctor._agent(document)
    assert [one.message for one in findings] == [LINE]


def test_the_exporters_page_tells_of_it_and_is_there_without_an_agent(flushed: Path) -> None:
    absent = flushed.with_name("absent.sock")
    for path, shown in ((flushed, LINE), (absent, str(absent))):
        with serving(partial(read_snapshot, path)) as port:
            response, body = get(port, "/")
        assert (response.status, shown in body.decode()) == (200, True)


def test_the_exporters_page_says_that_there_was_none() -> None:
    with serving(lambda: snapshot(1, 1)) as port:
        assert "<pre>none</pre>" in get(port, "/")[1].decode()
