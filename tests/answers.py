"""Holds what commands answer against their published schemas."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from netmgr.cli.schemas import PUBLISHED

SCHEMAS = Path(__file__).parents[1] / "configs" / "schemas"


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Of the schema that is published under a name, for example `plan-check`."""
    schema = json.loads((SCHEMAS / PUBLISHED[name].file).read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def validate(command: str, answer: Any) -> None:
    """An answer has what its schema says, and no key that this does not name."""
    validator(command.replace(" ", "-")).validate(answer)


def validated(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    """A snapshot of an agent, whose part without pods is what `netmgr node status` prints."""
    validate("node status", {key: value for key, value in snapshot.items() if key != "pods"})
    return snapshot
