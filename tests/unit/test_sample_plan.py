"""configs/plan/plan.yaml is valid as it stands and shows every key that a plan can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from netmgr.documents.loader import load
from netmgr.plan.document import PlanDocument

FOLDER = Path(__file__).parents[2] / "configs" / "plan"


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key by its path; names and numbers, of which there may be any, are `*`."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path
        for inner, star in models(field.annotation):
            yield from keys(inner, f"{path}.{star}")


def models(annotation: object, star: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        # A surge is written in one word.
        yield from [(annotation, star)] if annotation.__name__ != "Surge" else []
    for argument in get_args(annotation):
        yield from models(argument, "*.")


def given(data: Any, prefix: str, known: set[str]) -> Iterator[str]:
    for name, value in (
        data.items()
        if isinstance(data, dict)
        else ((str(place), v) for place, v in enumerate(data))
    ):
        path = f"{prefix}{name}" if f"{prefix}{name}" in known else f"{prefix}*"
        yield path
        if isinstance(value, dict | list):
            yield from given(value, f"{path}.", known)


@pytest.mark.parametrize("name", ["plan.yaml", "twenty-clusters.yaml"])
def test_the_samples_are_valid(name):
    load(FOLDER / name, PlanDocument)


def test_the_sample_names_every_key():
    known = set(keys(PlanDocument))
    assert {"clusters.*.services.length_v6", "exclude.*.reason", "hub.routers"} <= known
    data = yaml.safe_load((FOLDER / "plan.yaml").read_text(encoding="utf-8"))
    assert known - set(given(data, "", known)) == set()
