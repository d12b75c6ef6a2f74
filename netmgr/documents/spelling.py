"""Which key was meant where a document has one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from netmgr.documents.diagnostics import KeyPath
from netmgr.documents.schema import BaseModel

ALIKE = 0.8
"""difflib's ratio from which a key is suggested: one typo in five letters, two in ten.

At its default of 0.6, `rules` would be taken for `routes`, and `mode` for `node`."""


def advice(model: type[BaseModel], location: KeyPath) -> str:
    """What to do about `location`, an unknown key."""
    *above, key = location
    fields = _model_at(model, above).model_fields
    # As a document writes them.
    known = closest(str(key), (field.alias or name for name, field in fields.items()))
    return f"did you mean {known}?" if known else "remove it or correct its spelling"


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest; capitals, `-` and `_` make no difference."""
    plain = {_plain(candidate): candidate for candidate in known}
    typed = _plain(word)
    close = get_close_matches(typed, plain, 1, ALIKE)
    # Two swapped letters are much of a short word: `mut`, `cin`.
    same_letters = (spelling for spelling in plain if sorted(spelling) == sorted(typed))
    return next((plain[spelling] for spelling in (*close, *same_letters)), "")


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _model_at(model: type[BaseModel], path: Iterable[str | int]) -> type[BaseModel]:
    parts = iter(path)
    for part in parts:
        for name, field in model.model_fields.items():
            if part in (field.alias, name):
                model = _model_in(field.annotation) or model
                origin = get_origin(field.annotation)
                if isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
                    # An item's number or name; a name may be that of a field, too.
                    next(parts, None)
                break
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401  any type
    """The model that a field holds, itself, optionally or in a collection."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
