"""The landing page as a browser gets it: a node at a glance, safe whatever the names, and small."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from exporter import page
from netmgr.api.snapshot import Snapshot
from netmgr.errors import TryAgainLater
from tests.fakes.agent_socket import snapshot
from tests.fakes.exporter_port import get, serving
from tests.unit.html_structure import faults

HOSTILE = "<script src=//evil.example></script>\"'><img onerror=alert(1)>&lt;\x00\x1b\n"
EMPTY_TAGS = {"meta", "br", "img"}


class Page(HTMLParser):
    """Cells by row, tags, attributes; strict about nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.style = self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes] or [
            (tag, "", "")
        ]
        if tag not in EMPTY_TAGS:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self._open[-1:] == ["style"]:
            self.style += text
        elif self._open[-1:] in (["td"], ["th"], ["sup"]):
            self.rows[-1][-1] += text
        self.text += text

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _, _ in self.attributes}


def landing(document: Snapshot):
    with serving(lambda: document) as port:
        response, body = get(port, "/")
    assert response.status == 200
    return response, Page(body.decode())


def test_it_shows_the_node_and_who_uses_the_internet_most() -> None:
    document = snapshot(30, 2)
    document["pods"][7] |= {"bytes": 9_876_543_210_123}
    document["node_totals"] = [
        {"traffic": "internet-in", "bytes": 999, "packets": 1},
        {"traffic": "internet-out", "bytes": 999_500, "packets": 1},
    ]
    _, page = landing(document)
    assert "netmgr on node-1" in page.text
    assert "node, nftables backend" in page.text
    assert "ready" in page.text
    assert "Received from the internet999 B999 bytes" in page.text
    assert "Sent to the internet1.00 MB999,500 bytes" in page.text
    assert "Pods30in 2 namespaces" in page.text
    assert "Connections20,100of 262,144, 8%" in page.text
    assert "DriftReturns: rules were changed" in page.text
    pods = [row for row in page.rows if "training-worker" in row[0]]
    assert pods[0] == ["team-1/training-worker-3", "123 GB", "9.88 TB", "10.0 TB", "58%", ""]
    assert len(pods) == 10
    assert "Pods: the 10 of 30 with the most traffic" in page.text
    assert ("td", "title", "9,876,543,210,123 bytes") in page.attributes
    assert ["ipv4", "250", "3", "253", ""] in page.rows
    assert ["ipv6", "250", "3", "1.84 \N{MULTIPLICATION SIGN} 1019", ""] in page.rows
    assert ("td", "title", f"{2**64:,}") in page.attributes


def test_a_bar_is_as_long_as_the_share_beside_it() -> None:
    document = snapshot(2, 1)
    amounts = {0: (30, 10), 1: (50, 10)}
    for number, total in enumerate(document["pods"]):
        total["bytes"] = amounts[number // 2][number % 2]
    with serving(lambda: document) as port:
        _, body = get(port, "/")
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*worker-0<.*?</tr>", body.decode())
    assert ">40%</td>" in row
    assert re.findall(r'<rect x="(\d+)%" width="(\d+)%"', row) == [
        ("0", "30"),
        ("30", "10"),
    ]


def test_it_can_be_read_without_seeing_it() -> None:
    for document in (snapshot(30, 2), snapshot(1, 1) | {"role": "nat-host", "ready": False}):
        assert faults(page.of_node(document)) == []
    assert faults(page.without_agent("away")) == []


def test_it_comes_anew_by_itself_only_for_who_asks_for_it() -> None:
    with serving(lambda: snapshot(1, 1)) as port:
        still, body = get(port, "/")
        refreshing, other = get(port, "/?refresh")
    assert still.getheader("Refresh") is None
    assert refreshing.getheader("Refresh") == "15"
    assert b'<a href="/?refresh">Refresh every 15 s</a>' in body
    assert b'<a href="/">Stop refreshing</a>' in other
    assert b"http-equiv" not in body + other


def test_it_needs_no_script_fetches_nothing_and_forbids_both() -> None:
    response, page = landing(snapshot())
    assert page.tags & {"script", "img", "link", "iframe", "object", "form"} == set()
    assert {value for _, name, value in page.attributes if name in ("href", "src")} == {
        "/metrics",
        "/healthz",
        "/readyz",
        "/?refresh",
        "#main",
    }
    allowed = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    policy = dict(
        part.split(" ", 1) for part in response.getheader("Content-Security-Policy", "").split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == f"'sha256-{allowed}'"
    assert response.getheader("X-Content-Type-Options") == "nosniff"


def test_hostile_names_are_text_and_nothing_else() -> None:
    plain = snapshot(12, 12)
    hostile = snapshot(12, 12)
    for entry in (*hostile["pods"], *hostile["namespaces"]):
        entry["namespace"] += HOSTILE
    for entry in hostile["pods"]:
        entry["pod"] += HOSTILE
    for key in ("node", "netmgr_version", "backend", "reason"):
        hostile[key] = HOSTILE
    hostile["pool"][0]["family"] = HOSTILE
    _, expected = landing(plain)
    _, page = landing(hostile)
    assert page.tags == expected.tags
    assert [row[1:] for row in page.rows] == [row[1:] for row in expected.rows]
    assert page.rows[1][0] == f"team-0{HOSTILE}"
    hostile["ready"] = False
    assert f"not ready: {HOSTILE}" in landing(hostile)[1].text


def test_a_nat_host_shows_what_it_drops_and_translates_and_no_pods() -> None:
    document = snapshot(5, 5) | {"role": "nat-host"}
    document["isolation"][1] |= {"packets": 99_000_000, "bytes": 1_500}
    _, page = landing(document)
    assert "nat-host, nftables backend" in page.text
    assert ["spoke-2", "spoke-1", "99,000,000", "1.50 kB"] in page.rows
    assert "Dropped between spokes: the 10 of 38 with the most traffic" in page.text
    assert ["10.100.0.0/20", "10.96.0.0/20", "87,654,321", "123 GB"] in page.rows
    assert ["ipv6 sctp", "16,128", "64,512", "10.1.0.10:80", ""] in page.rows
    assert not any("training-worker" in row[0] for row in page.rows)
    tags = page.tags
    document["isolation"][1]["origin"] = document["nat"]["ranges"][0]["vip_range"] = HOSTILE
    document["role"] = document["nat"]["ports"][0]["endpoint"] = HOSTILE
    assert landing(document)[1].tags == tags


def test_where_nothing_is_dropped_between_spokes_no_table_tells_of_it() -> None:
    document = snapshot(1, 1)
    for pair in document["isolation"]:
        pair["packets"] = 0
    assert "Dropped between spokes" not in landing(document)[1].text


def test_it_stays_small_on_the_largest_node_with_the_longest_names() -> None:
    document = snapshot(2000, 300)
    for entry in (*document["pods"], *document["namespaces"]):
        entry["namespace"] += "n" * 10_000
    with serving(lambda: document) as port:
        _, body = get(port, "/")
    assert len(body) < 20_000


def away() -> Snapshot:
    raise TryAgainLater("<no agent>")


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (away, "<no agent>"),
        (lambda: {"version": 1}, "makes no sense"),
        (lambda: snapshot(1, 1) | {"pods": [{"namespace": None}]}, "makes no sense"),
        (lambda: snapshot(1, 1) | {"node": "\udcff"}, "makes no sense"),
    ],
)
def test_while_the_agent_is_away_it_says_so(read, told: str) -> None:
    with serving(read) as port:
        response, body = get(port, "/")
    page = Page(body.decode())
    assert response.status == 200
    assert "The agent does not answer." in page.text
    assert told in page.text
