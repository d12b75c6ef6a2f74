"""What the commands that write support archives print."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from netmgr.archive import collect, packed
from netmgr.cli.bundle import write


def refuse() -> str:
    raise ValueError("no such thing\nusage: thing [options]\n  -h  help")


def test_many_missing_parts_are_a_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {f"logs/{number}.log": refuse for number in range(40)}
    parts = {"versions.json": lambda: "{}", "kernel/links.json": lambda: "[]"}
    target = tmp_path / "bundle.tar.gz"
    write(packed("netmgr-x", collect(parts | missing)), target, "node")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        *(f"without logs/{number}.log: no such thing" for number in range(3)),
        "without 37 more, in whose place the archive says why",
    ]
    written, advice = shown.out.splitlines()
    assert written.startswith(f"{target}: ")
    assert written.endswith(" in 2 parts (versions.json, kernel, logs).")
    assert advice == "Look through it before you send it to anybody."
    with tarfile.open(target) as archive:
        file = archive.extractfile("netmgr-x/logs/39.log")
        assert file is not None
        assert b"cannot be collected: no such thing\nusage: " in file.read()


def test_a_whole_archive_is_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(packed("netmgr-x", {"versions.json": "{}"}), tmp_path / "x", "node")
    shown = capsys.readouterr()
    assert (shown.err, len(shown.out.splitlines())) == ("", 2)
