"""Budgets of internet traffic that pods of some namespaces have in a whole cluster.

What follows from them on a node is in `netmgr/limits`. Budgets of one direction are within one
another or have no namespace in common: then a packet's classes are a path of HTB's, and a pod
counts in every budget that holds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, combinations
from typing import Annotated, Literal

from netmgr.budgets.messages import LONGEST, MOST, NAME, PATTERN, Budget, encode
from netmgr.documents import patterns
from netmgr.documents.diagnostics import Diagnostic, Invalid, KeyPath, Location, Severity, error
from netmgr.documents.fields import Document
from netmgr.documents.limits import BitRate, Quota, WhenSpent
from netmgr.documents.quantity import written
from netmgr.documents.schema import Field, model_validator
from netmgr.model import Traffic

MOST_NESTED = 6
"""HTB has eight levels, of which a namespace's limit and the pod need two (TC_HTB_MAXDEPTH)."""

MOST_BYTES = LONGEST - 32 * 1024
"""Of all budgets in an answer to a node: the rest is for what it is granted of them."""

LEAST_SHARE = 500_000
"""Bits a second of a budget for each node. Below, one long packet is more than a second's share."""

LEAST_BEYOND = 9_000
"""Bits a second of `when-spent` for each node. HTB has no packet wait for longer than a minute, and
what comes in may be joined to 64 KiB.
"""


class ClusterBudget(Document):
    """What the pods of some namespaces may have together, in one direction."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    """Its name in metrics and answers."""
    within: str | None = None
    """Name of the budget that this one is a part of."""
    namespaces: Annotated[
        tuple[Annotated[str, Field(pattern=f"^{PATTERN}$")], ...],
        Field(min_length=1, max_length=MOST),
    ]
    """Names of namespaces, or what they begin with and a *."""
    internet_in: Annotated[BitRate | None, Field(alias="internet-in")] = None
    """Bits a second from the internet, of all nodes together, Ethernet headers included."""
    internet_out: Annotated[BitRate | None, Field(alias="internet-out")] = None
    """Bits a second to the internet, likewise; a budget has one of the two."""
    per_day: Annotated[Quota | None, Field(alias="per-day")] = None
    """Bytes that may pass from midnight to midnight (UTC), of all nodes together."""
    when_spent: Annotated[WhenSpent, Field(alias="when-spent")] = 0
    """What happens to packets beyond `per-day`: `drop`, or bits a second, of all nodes together,
    at which they pass; that is beside the quota."""

    @model_validator(mode="after")
    def _is_complete(self) -> ClusterBudget:
        if (self.internet_in is None) == (self.internet_out is None):
            raise ValueError("give either internet-in or internet-out")
        if "when_spent" in self.model_fields_set and self.per_day is None:
            raise ValueError("when-spent has no quota; give per-day")
        if self.when_spent > self.rate:
            raise ValueError(
                f"when-spent is more than {self.direction}; give less than {written(self.rate)}"
            )
        return self

    @property
    def direction(self) -> Traffic:
        return Traffic.INTERNET_OUT if self.internet_in is None else Traffic.INTERNET_IN

    @property
    def rate(self) -> int:
        return self.internet_in or self.internet_out or 0


class BudgetsDocument(Document):
    """Budgets of a cluster's internet traffic."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    """Version of the document's form."""
    kind: Literal["Budgets"]
    """What the document is."""
    enforce: bool = True
    """Whether anybody is held back; `off` only shows who would be."""
    budgets: Annotated[tuple[ClusterBudget, ...], Field(max_length=MOST)] = ()
    """Of one direction they are within one another or have no namespace in common."""

    @model_validator(mode="after")
    def _is_consistent(self) -> BudgetsDocument:
        # The first one alone: a validator can raise one error.
        for diagnostic in chain(
            _of_names(self), _of_parents(self), _of_size(self), _of_namespaces(self)
        ):
            raise Invalid(diagnostic)
        return self

    def ancestors(self, name: str) -> list[str]:
        """The budgets that a budget is within, its own parent first; ends before a cycle."""
        parents = {budget.name: budget.within for budget in self.budgets}
        above: list[str] = []
        parent = parents.get(name)
        while parent is not None and parent not in above:
            above.append(parent)
            parent = parents.get(parent)
        return above

    def budgets_in_order(self) -> tuple[Budget, ...]:
        """As the cluster's machines know them, parents first."""
        ordered = sorted(self.budgets, key=lambda budget: len(self.ancestors(budget.name)))
        return tuple(
            Budget(
                budget.name,
                budget.within or "",
                budget.namespaces,
                budget.direction,
                budget.rate,
                budget.per_day or 0,
                budget.when_spent,
            )
            for budget in ordered
        )

    @property
    def version(self) -> str:
        """Another one after each change of what it says."""
        said = [self.enforce, *map(asdict, self.budgets_in_order())]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _key(number: int, name: str) -> KeyPath:
    return ("budgets", number, name)


def _of_names(document: BudgetsDocument) -> Iterator[Diagnostic]:
    first: dict[str, int] = {}
    for number, budget in enumerate(document.budgets):
        if budget.name in first:
            beside = _key(first[budget.name], "name")
            message = f"two budgets are named {budget.name}"
            yield error(message, _key(number, "name"), beside, "name each once")
        first[budget.name] = number


def _of_parents(document: BudgetsDocument) -> Iterator[Diagnostic]:
    for number, budget in enumerate(document.budgets):
        if budget.within is not None:
            yield from _of_within(document, number, budget.within)


def _of_within(document: BudgetsDocument, number: int, within: str) -> Iterator[Diagnostic]:
    name, key = document.budgets[number].name, _key(number, "within")
    names = [budget.name for budget in document.budgets]
    above = document.ancestors(name)
    if within not in names:
        known = ", ".join(other for other in names if other != name) or "no others"
        yield error(f"there is no budget {within}", key, remedy=f"there are {known}")
    elif name in above:
        path = " within ".join((name, *above))
        yield error(f"{path} is a circle", key, remedy="remove one within")
    elif len(above) >= MOST_NESTED:
        remedy = f"nest at most {MOST_NESTED}: the kernel has no more levels"
        yield error(f"{name} is within {len(above)} budgets", key, remedy=remedy)
    else:
        yield from _of_parent(document, number, names.index(within))


def _of_parent(document: BudgetsDocument, number: int, above: int) -> Iterator[Diagnostic]:
    budget, parent = document.budgets[number], document.budgets[above]
    if budget.direction is not parent.direction:
        yield error(
            f"{budget.name} is for {budget.direction}, and {parent.name} for {parent.direction}",
            _key(number, "within"),
            _key(above, parent.direction),
            "make a budget for each direction",
        )
    elif budget.rate > parent.rate:
        yield error(
            f"{written(budget.rate)} is more than {parent.name} has, {written(parent.rate)}",
            _key(number, budget.direction),
            _key(above, parent.direction),
            "lower it, or raise the other",
        )
    for pattern in budget.namespaces:
        if not patterns.matches(parent.namespaces, pattern):
            yield error(
                f"{pattern} is not within the namespaces of {parent.name}",
                _key(number, "namespaces"),
                _key(above, "namespaces"),
                "name fewer here, or more there",
            )


def _of_size(document: BudgetsDocument) -> Iterator[Diagnostic]:
    size = len(encode(document.budgets_in_order()))
    if size > MOST_BYTES:
        lengths = [len(encode(budget.namespaces)) for budget in document.budgets]
        yield error(
            f"the budgets have {size} bytes, of which an answer to a node can have {MOST_BYTES}",
            _key(lengths.index(max(lengths)), "namespaces"),
            remedy="name fewer namespaces, or what they begin with and a *",
        )


def _of_namespaces(document: BudgetsDocument) -> Iterator[Diagnostic]:
    for (first, budget), (second, other) in combinations(enumerate(document.budgets), 2):
        if budget.direction is not other.direction:
            continue
        above, beside = document.ancestors(budget.name), document.ancestors(other.name)
        is_nested = budget.name in beside or other.name in above
        if not is_nested and (_holds_of(budget, other) or _holds_of(other, budget)):
            yield error(
                f"a namespace can be in {other.name} and in {budget.name}",
                _key(second, "namespaces"),
                _key(first, "namespaces"),
                "say that one is within the other, or name other namespaces",
            )


def _holds_of(budget: ClusterBudget, other: ClusterBudget) -> bool:
    """Whether one of a budget's patterns stands for all that one of another's does."""
    # With no * but at the end, two that have a name in common are one within the other.
    return any(patterns.matches(budget.namespaces, pattern) for pattern in other.namespaces)


def too_low(document: BudgetsDocument, nodes: int) -> Iterator[Diagnostic]:
    """Warnings of budgets of which so many nodes have too little each."""
    for number, budget in enumerate(document.budgets):
        for key, rate, least in (
            (budget.direction, budget.rate, LEAST_SHARE),
            ("when-spent", budget.when_spent, LEAST_BEYOND),
        ):
            if 0 < rate < nodes * least:
                yield Diagnostic(
                    f"{written(rate)} is {rate // nodes} bits a second for each of "
                    f"{nodes} nodes, which pass more than that by single packets",
                    Location(_key(number, key)),
                    remedy=f"give at least {written(nodes * least)}",
                    severity=Severity.WARNING,
                )
