"""What a pass suspects is looked at again, alone and held, before anything is done about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netmgr.errors import KernelError, TryAgainLater
from netmgr.suspects import Suspects, unlocked


def test_each_is_looked_at_again_and_acted_on_while_it_is_held() -> None:
    log: list[str] = []

    @contextmanager
    def holding(name: str) -> Iterator[None]:
        log.append(f"hold {name}")
        yield
        log.append(f"let {name} go")

    def is_old(name: str) -> bool:
        log.append(f"look at {name}")
        return name == "old"

    assert Suspects(("old", "new")).resolve(holding, is_old, lambda name: [f"{name} went"]) == [
        "old went"
    ]
    assert log == [
        *("hold old", "look at old", "let old go"),
        *("hold new", "look at new", "let new go"),
    ]


def test_one_that_somebody_else_is_about_to_change_is_left_to_them() -> None:
    @contextmanager
    def holding(name: str) -> Iterator[None]:
        if name == "busy":
            raise TryAgainLater("another request is under way")
        yield

    seen: list[str] = []
    assert Suspects(("busy", "idle")).resolve(holding, lambda _: True, seen.append) == []
    assert seen == ["idle"]


def test_one_that_fails_keeps_no_other_from_being_dealt_with_and_is_told() -> None:
    seen: list[str] = []

    def act(name: str) -> None:
        seen.append(name)
        if name == "stuck":
            raise KernelError("delete link 7", details="the kernel takes too long")

    with pytest.raises(KernelError, match="delete link 7"):
        Suspects(("stuck", "next")).resolve(unlocked, lambda _: True, act)
    assert seen == ["stuck", "next"]


def test_nobody_can_act_on_suspects_without_the_second_look() -> None:
    suspects = Suspects(("one",))
    assert suspects
    assert not Suspects()
    assert not {"__iter__", "__len__", "__getitem__", "__contains__"} & set(dir(suspects))
