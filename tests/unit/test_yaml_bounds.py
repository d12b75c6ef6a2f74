"""What a document may cost is bounded, whatever is written in it, wherever YAML is read."""

import os
import resource
import subprocess
import sys

import pytest
import yaml

from netmgr.documents import loader, yaml_loader
from netmgr.documents.node import NodeDocument
from netmgr.documents.yaml_loader import BeyondBounds
from netmgr.errors import ConfigError
from netmgr.plan.adopt import read_existing
from tests.waiting import PATIENCE


def nested(item, levels=9, width=9):
    """A text of aliases of aliases: `width` to the power of `levels` items."""
    lines = [f"a0: &a0 {item}"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
BOMBS = {
    "aliases": nested("[x, x, x]"),
    "merge keys": MERGES,
    "itself": "a: &a [*a]\n",
    "itself by another": "a: &a\n  b: &b [*a]\n",
    "brackets": "[" * 100_000,
    "braces": "{a: " * 100_000,
    "dashes": "- " * 100_000,
    "keys": "? " * 100_000,
}


@pytest.fixture(autouse=True)
def bounded():
    """Neither time nor memory: a gigabyte would be refused, and so would a processor's minute."""
    before, begin = resource.getrlimit(resource.RLIMIT_AS), sum(os.times()[:4])
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115  one line
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert sum(os.times()[:4]) - begin < PATIENCE


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_document_and_a_list_of_what_exists_are_refused_with_their_file(bomb):
    with pytest.raises(yaml.YAMLError):
        yaml_loader.load(BOMBS[bomb])
    with pytest.raises(ConfigError, match=r"^node\.yaml"):
        loader.parse(BOMBS[bomb], "node.yaml", NodeDocument)
    with pytest.raises(ConfigError, match=r"^networks"):
        read_existing(BOMBS[bomb], "networks")


def test_the_line_is_named_where_there_is_one():
    with pytest.raises(ConfigError, match=r"^node\.yaml:\d+: aliases add more than 100000 nodes$"):
        loader.parse(BOMBS["aliases"], "node.yaml", NodeDocument)


def test_aliases_that_people_write_are_none_of_this():
    text = "defaults: &d {a: 1, b: [2, 3]}\nx:\n  <<: *d\n  c: *d\ny: [*d, *d]\n"
    assert yaml_loader.load(text) == yaml.safe_load(text)
    many = "a: &a x\nall: [" + ", ".join(["*a"] * 5000) + "]\n"
    assert len(yaml_loader.load(many)["all"]) == 5000


@pytest.mark.parametrize("closers", ['"{}"', "'{}'", "# {}", "|\n    {}"])
def test_brackets_within_texts_hide_no_levels(closers):
    hidden = closers.format("]" * 2000)
    deep = f"- {hidden}\n- {'[' * 1500}{']' * 1500}\n"
    with pytest.raises(BeyondBounds, match="more than 1000 lists"):
        yaml_loader.load(deep)


@pytest.mark.programs
@pytest.mark.parametrize("levels", [5_000, 22_000, 1_000_000])
def test_no_depth_ends_the_process(levels):
    program = (  # the text is made there: a parameter of a program is at most 128 KiB long
        "import sys; from netmgr.documents import yaml_loader; import yaml\n"
        "try: yaml_loader.load(sys.argv[1] * int(sys.argv[2]))\n"
        "except yaml.YAMLError: sys.exit(3)\n"
    )
    for shape in ("[", "- ", "? ", "{a: ", "[ ']', ", "- - '}': "):
        done = subprocess.run(
            [sys.executable, "-c", program, shape, str(levels)], env=os.environ, check=False
        )
        assert done.returncode == 3


@pytest.mark.parametrize("value", ['!!int ""', '!!float ""', "1" + ":00" * 200 + ".5", "!!bool x"])
def test_a_value_that_cannot_be_one_is_an_error_of_yaml(value):
    with pytest.raises(yaml.YAMLError, match="has a value that cannot be one"):
        yaml_loader.load(f"a: {value}")
    with pytest.raises(ConfigError, match=r"^networks: has a value that cannot be one"):
        read_existing(f"a: {value}", "networks")
