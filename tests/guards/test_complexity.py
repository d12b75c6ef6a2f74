"""How much a reader must hold in mind: cognitive complexity, dense expressions included.

Each branch or loop costs one, and one more for every level it is nested. A comprehension is a loop,
and each of its further loops and conditions costs extra; so do ternaries and chains of `and` and
`or`. A nested function or lambda nests what is in it. The length of a function is not judged: a
long flat list of steps reads well.
"""

from __future__ import annotations

import ast

import pytest

pytestmark = pytest.mark.programs

LIMIT = 12

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NESTING = (*FUNCTIONS, ast.Lambda)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Match,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def complexity(node: ast.AST, depth: int = 0) -> int:
    return sum(_cost(child, depth) for child in ast.iter_child_nodes(node))


def _cost(node: ast.AST, depth: int) -> int:
    if isinstance(node, NESTING):
        return complexity(node, depth + 1)
    if isinstance(node, BRANCHES):
        return 1 + depth + complexity(node, depth + 1)
    if isinstance(node, COMPREHENSIONS):
        own = sum(1 + depth + number + len(loop.ifs) for number, loop in enumerate(node.generators))
        return own + complexity(node, depth + 1)
    if isinstance(node, ast.BoolOp):
        return 1 + complexity(node, depth)
    return complexity(node, depth)


def test_no_function_of_the_product_is_too_complex(product: dict[str, ast.Module]) -> None:
    found = {
        f"{name}:{node.lineno} {node.name}": complexity(node)
        for name, tree in product.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    }
    assert {name: cost for name, cost in found.items() if cost > LIMIT} == {}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("first(); second(); third()", 0),
        ("return a and b or c", 2),
        ("return a if b else c", 1),
        ("return [a for a in b]", 1),
        ("return [a for a in b if a if c]", 3),
        ("return [a for b in c for a in b]", 3),
        ("return lambda: a if b else c", 2),
        ("for a in b:\n  if a and c:\n   return d", 4),
        ("try: a()\n except E: b()", 1),
    ],
)
def test_nesting_and_dense_expressions_count(body: str, expected: int) -> None:
    assert complexity(ast.parse(f"def function():\n {body}").body[0]) == expected
