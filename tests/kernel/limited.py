"""What tests of limits share: pods of a kind, what a node shows, an agent without limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from tests.kernel.common import repairs
from tests.kernel.namespaces import inside
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox

NewPod = Callable[..., Sandbox]
_numbers = count(1)


@contextmanager
def pods_of(node: LabNode) -> Iterator[NewPod]:
    """Runs pods of a kind, by which limits choose them, until the block ends."""
    made: list[Sandbox] = []

    def add(kind: str, namespace: str = "research") -> Sandbox:
        made.append(node.add(f"{kind}-{next(_numbers)}", namespace))
        return made[-1]

    yield add
    for sandbox in made:
        node.runtime.delete(sandbox)


def shown(node: LabNode, *command: str) -> str:
    """What a program on the node prints; it must succeed."""
    return inside(node.namespace, *command)


def repaired(node: LabNode, reason: str = "limits") -> int:
    """How often the agent put something of this kind right."""
    return repairs(node, reason)


@contextmanager
def without_limits(node: LabNode) -> Iterator[None]:
    """The node with another agent, whose document has no limits."""
    settings = node.settings
    node.stop_agent()
    node.settings = {key: value for key, value in settings.items() if key != "limits"}
    node.write_document()
    node.start_until_ready()
    try:
        yield
    finally:
        node.settings = settings
