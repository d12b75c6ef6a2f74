"""Support archives: what cannot be collected, what is too long, what names become, and what the
commands that write them print.
"""

from __future__ import annotations

import io
import re
import tarfile
import time
from pathlib import Path

import pytest

from netmgr import archive
from netmgr.cli.bundle import write
from netmgr.errors import SetupError


def test_a_part_that_fails_says_why_in_its_place_and_a_long_one_keeps_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> str:
        raise SetupError("nothing there")

    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    parts = {"bad": failing, "long": lambda: "0123456789end", "short": lambda: "0123456789"}
    parts["one"] = lambda: "01234567890"
    assert archive.collect(parts) == {
        "bad": "cannot be collected: nothing there\n",
        "long": "the first 3 characters are left out\n3456789end",
        "short": "0123456789",
        "one": "the first 1 characters are left out\n1234567890",
    }


def test_a_name_has_one_pseudonym_and_only_whole_words_are_names() -> None:
    names = ["web", "web-0", "team-a", "kube-system"]
    text = "team-a/web-0 web web.example cobweb webs web-0.x kube-system"
    found = archive.redacted({"a": text, "b": "web-0"}, names)
    namespace, pod = found["a"].split()[0].split("/")
    assert archive.redacted({"a": text}, names)["a"] != found["a"]
    assert found["b"] == pod
    web = found["a"].split()[1]
    assert len({namespace, pod, web}) == 3
    assert found["a"].split()[2:] == ["web.example", "cobweb", "webs", "web-0.x", "kube-system"]


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("released container=1 pod=team/gone why=x", "released container=1 pod=N/N why=x"),
        ('quota namespace="team" pod="a b/gone"', 'quota namespace="N" pod="N/N"'),
        ('{"namespace": "team", "pod": "gone", "n": 7}', '{"namespace": "N", "pod": "N", "n": 7}'),
        ('{"namespace": "", "pod": "-"}', '{"namespace": "", "pod": "-"}'),
        ("pods=7 podium=x", "pods=7 podium=x"),
        ('pod="X/X"', 'pod="N/N"'),
    ],
)
def test_what_lines_and_documents_say_of_pods_that_are_gone_is_hidden(
    line: str, hidden: str
) -> None:
    shown = archive.redacted({"log": line}, [])["log"]
    assert re.sub("name-[0-9a-f]{10}", "N", shown) == hidden


def test_an_archive_has_every_part_for_its_owner_alone() -> None:
    before = int(time.time())
    packed, parts, _ = archive.packed("node", {"a": "text", "deep/b": "\udcff?"})
    assert parts == ("a", "deep/b")
    assert packed[:2] == b"\x1f\x8b"
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as found:
        entries = found.getmembers()
        contents = [found.extractfile(entry).read() for entry in entries]
    assert [entry.name for entry in entries] == ["node/a", "node/deep/b"]
    assert contents == [b"text", b"??"]
    assert {entry.mode for entry in entries} == {0o600}
    assert before <= entries[0].mtime <= time.time()


def refuse() -> str:
    raise ValueError("no such thing\nusage: thing [options]\n  -h  help")


def test_many_missing_parts_are_a_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {f"logs/{number}.log": refuse for number in range(40)}
    parts = {"versions.json": lambda: "{}", "kernel/links.json": lambda: "[]"}
    target = tmp_path / "bundle.tar.gz"
    write(archive.packed("netmgr-x", archive.collect(parts | missing)), target, "node")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        *(f"without logs/{number}.log: no such thing" for number in range(3)),
        "without 37 more, in whose place the archive says why",
    ]
    written, advice = shown.out.splitlines()
    assert written.startswith(f"{target}: ")
    assert written.endswith(" in 2 parts (versions.json, kernel, logs).")
    assert advice == "Look through it before you send it to anybody."
    with tarfile.open(target) as bundle:
        file = bundle.extractfile("netmgr-x/logs/39.log")
        assert file is not None
        assert b"cannot be collected: no such thing\nusage: " in file.read()


def test_a_whole_archive_is_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(archive.packed("netmgr-x", {"versions.json": "{}"}), tmp_path / "x", "node")
    shown = capsys.readouterr()
    assert (shown.err, len(shown.out.splitlines())) == ("", 2)
