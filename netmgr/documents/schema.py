"""What documents are declared with: pydantic's names, or stand-ins that only hold what was checked.

A process without pydantic gets its documents from one that has it (`agent/core/checking.py`). The
classes are the same there, with their properties and methods; their validators are never called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from netmgr import documents

if TYPE_CHECKING or documents.HAS_PYDANTIC:
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        PlainSerializer,
        PrivateAttr,
        ValidationError,
        ValidationInfo,
        WithJsonSchema,
        field_validator,
        model_validator,
    )
else:

    class BaseModel:
        """A model that was pickled where pydantic is."""

        def __setstate__(self, state: Mapping[str, Any]) -> None:
            self.__dict__.update(state["__dict__"], **state["__pydantic_private__"] or {})

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            return ((name, value) for name, value in vars(self).items() if name[0] != "_")

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and vars(other) == vars(self)

        def __hash__(self) -> int:
            return hash(tuple(vars(self).values()))

        def model_copy(self, update: Mapping[str, Any]) -> Self:
            copied = object.__new__(type(self))
            copied.__dict__.update(vars(self), **update)
            return copied

    def _declaration(*_: object, **__: object) -> None:
        """Of a field or type; what it says was checked."""

    def _validator(*_: object, **__: object) -> type[staticmethod]:
        return staticmethod

    AfterValidator = BeforeValidator = ConfigDict = Field = _declaration
    PlainSerializer = PrivateAttr = WithJsonSchema = _declaration
    field_validator = model_validator = _validator
    ValidationInfo = object

    class ValidationError(ValueError):
        """Is never raised: nothing is checked here."""


__all__ = [
    "AfterValidator",
    "BaseModel",
    "BeforeValidator",
    "ConfigDict",
    "Field",
    "PlainSerializer",
    "PrivateAttr",
    "ValidationError",
    "ValidationInfo",
    "WithJsonSchema",
    "field_validator",
    "model_validator",
]
