"""Rules about files: where they stand, how long they are, and what none of them may hold."""

from __future__ import annotations

import ast
import re

import pytest

pytestmark = pytest.mark.programs

FOLDERS = {"netmgr", "cni", "exporter", "tests", "configs", "docs"}
PAGES = {
    *("README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "SECURITY.md", "CONTRIBUTING.md"),
    *("CHANGELOG.md", "LICENSE"),
}
MEANS = {"pyproject.toml", "Makefile", "Dockerfile"}
MOST_LINES_OF_A_FILE = 500

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
PLACES = re.compile(
    r"/(?:work|Users)/\w"  # somebody's machine
    # package registries
    r"|(?:pypi|pythonhosted|crates|npmjs|maven|proxy\.golang)\.(?:org|io|com)\b"
    r"|\b(?:deb|security|archive)\.(?:debian|ubuntu)\.(?:org|com)\b"
    r"|index-url|--find-links",
)
THIS_FILE = "tests/guards/test_tree.py"


def test_the_top_level_holds_what_the_design_names(files: list[str]) -> None:
    names = {name.split("/")[0] for name in files}
    assert {name for name in names if not name.startswith(".")} <= FOLDERS | PAGES | MEANS


def test_no_file_is_too_long_to_read(texts: dict[str, str]) -> None:
    code = {
        name: text
        for name, text in texts.items()
        if name.endswith((".py", ".c", ".sh")) or "." not in name
    }
    long = {name: text.count("\n") for name, text in code.items() if name != "LICENSE"}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES_OF_A_FILE} == {}


@pytest.mark.parametrize("pattern", [UNFINISHED, PLACES], ids=["unfinished", "places"])
def test_no_file_holds(texts: dict[str, str], pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        if name != THIS_FILE
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_an_exception_is_caught_by_name_unless_it_goes_on(modules: dict[str, ast.Module]) -> None:
    broad = [
        f"{name}:{node.lineno}"
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _goes_on(node)
    ]
    assert broad == []


def _is_broad(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        kind is None or getattr(kind, "id", "") in {"Exception", "BaseException"} for kind in kinds
    )


def _goes_on(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def test_no_comprehension_takes_a_name_of_its_module(modules: dict[str, ast.Module]) -> None:
    """Python 3.12 inlines comprehensions (PEP 709), and early releases then take the module's name
    for a local one.

    A sibling comprehension that means the global raises UnboundLocalError there (CPython
    gh-118513); 3.11 does not.
    """
    taken = [
        f"{name}:{loop.lineno} {variable}"
        for name, tree in modules.items()
        for names in [_names_of_module(tree)]
        for loop in ast.walk(tree)
        if isinstance(loop, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        for variable in sorted(_loop_variables(loop) & names)
    ]
    assert taken == []


def _loop_variables(loop: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> set[str]:
    targets = [generator.target for generator in loop.generators]
    return {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }


def _names_of_module(tree: ast.Module) -> set[str]:
    """What is defined, imported or assigned at the top of a module,
    inside `if` and `try` as well."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        match pending.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as definition:
                names.add(definition.name)
            case ast.alias() as imported:
                names.add((imported.asname or imported.name).partition(".")[0])
            case ast.Name(ctx=ast.Store()) as assigned:
                names.add(assigned.id)
            case (
                ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.Lambda()
            ):
                pass  # their variables are their own
            case other:
                pending += ast.iter_child_nodes(other)
    return names


def test_a_suppression_says_why(texts: dict[str, str]) -> None:
    mark = re.compile(
        r"#\s*(?:noqa|type: ignore)(?:: [A-Z0-9, ]*[0-9]|\[[a-z, -]*\])?(?P<reason>.*)$"
    )
    bare = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        if name.endswith(".py") and name != THIS_FILE
        for number, line in enumerate(text.splitlines(), 1)
        if (found := mark.search(line)) and not re.search(r"\w{3}", found["reason"])
    ]
    assert bare == []
