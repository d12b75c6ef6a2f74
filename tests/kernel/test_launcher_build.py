"""Compiling the launcher with what a machine has."""

import importlib.util
import json
import subprocess
import sys

import pytest

from cni import build
from cni.build import Compiler
from netmgr import programs
from netmgr.errors import SetupError
from tests.kernel.launching import (
    EXECUTE,
    GNU_RELRO,
    GNU_STACK,
    LOAD,
    WRITE,
    elf,
    segments,
    variables,
)

pytestmark = [pytest.mark.programs, pytest.mark.slow]

HOST = build.host_architecture()
MACHINES = {"amd64": 62, "arm64": 183}
STRICT = "-std=c11 -Wall -Wextra -Werror -Wpedantic -Wshadow -Wconversion -O2 -static"
BROKEN = Compiler("broken", ("false",))
ZIGLANG = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="ziglang is missing (411 MB): pip install -r .ci/launcher-compiler.lock",
)


def compilers(architecture, name):
    return (compiler for compiler in build.available(architecture) if compiler.name == name)


def version_answer(program):
    outcome = subprocess.run(
        [program], input=b"{}", env=variables("VERSION"), capture_output=True, check=True
    )
    return json.loads(outcome.stdout)


def test_the_source_has_no_warning_in_it(tmp_path):
    compiler = next(build.available(HOST))
    command = (*compiler.command, *STRICT.split(), "-o", tmp_path / "launcher", build.SOURCE)
    outcome = programs.run(command, timeout=600)
    assert (outcome.returncode, outcome.stderr) == (0, b"")


def test_functions_with_buffers_are_guarded_against_overflows(tmp_path):
    compiler = next(build.available(HOST))
    listing = tmp_path / "launcher.s"
    flags = [flag for flag in build.FLAGS if flag not in ("-static", "-s")]
    outcome = programs.run((*compiler.command, *flags, "-S", "-o", listing, build.SOURCE))
    assert outcome.returncode == 0, outcome.stderr
    text = listing.read_text()
    assert "__stack_chk_fail" in text
    if compiler.name != "ziglang":  # musl has no checking variants
        assert "_chk@" in text or "_chk\n" in text


def test_no_memory_of_the_launcher_is_written_and_executed(tmp_path):
    target = tmp_path / "launcher"
    build.build(target, HOST)
    parts = segments(target)
    flags = dict(parts)
    assert not flags[GNU_STACK] & EXECUTE
    assert GNU_RELRO in flags
    assert not [of for kind, of in parts if kind == LOAD and of & WRITE and of & EXECUTE]


def test_this_machines_launcher_runs_and_is_current(tmp_path):
    target = tmp_path / "deep" / "launcher"
    build.build(target, HOST)
    assert build.is_current(target)
    assert elf(target) == (MACHINES[HOST], False)
    assert version_answer(target)["cniVersion"] == "1.1.0"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("part", build.PARTS, ids=lambda part: part.name)
def test_a_launcher_of_another_source_is_not_current(tmp_path, monkeypatch, part):
    target = tmp_path / "launcher"
    build.build(target, HOST)
    changed = tmp_path / "changed"
    changed.write_text(part.read_text() + "\n")
    parts = [changed if each == part else each for each in build.PARTS]
    monkeypatch.setattr(build, "PARTS", parts)
    assert not build.is_current(target)
    assert not build.is_current(tmp_path / "missing")


def test_the_next_compiler_is_tried_when_one_fails(tmp_path):
    good = next(build.available(HOST))
    assert build.build(tmp_path / "launcher", HOST, iter([BROKEN, good])) == good.name


def test_without_a_compiler_the_message_says_how_to_get_one(tmp_path):
    target = tmp_path / "launcher"
    target.write_text("the former one")
    with pytest.raises(SetupError, match="apt-get install gcc libc6-dev"):
        build.build(target, HOST, iter([BROKEN]))
    assert target.read_text() == "the former one"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unknown_architecture_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(SetupError, match="amd64 or arm64"):
        build.build(tmp_path / "launcher", "riscv64")


def test_make_builds_nothing_twice():
    command = (sys.executable, "-m", "cni.build")
    assert programs.run(command, timeout=600).returncode == 0
    again = programs.run(command)
    assert (again.returncode, again.stdout) == (0, b"")


@ZIGLANG
@pytest.mark.timeout(900)  # it compiles its C library first
@pytest.mark.parametrize("architecture", MACHINES)
def test_ziglang_compiles_for_every_architecture(tmp_path, architecture):
    target = tmp_path / "launcher"
    build.build(target, architecture, compilers(architecture, "ziglang"))
    assert build.is_current(target)
    assert elf(target) == (MACHINES[architecture], False)
    if architecture == HOST:
        assert version_answer(target)["cniVersion"] == "1.1.0"
