"""JSON Schemas of the documents that people write, for their editors: `configs/schemas`.

They are made from the models that the documents are read with, by `python -m tests.docs.reference`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from netmgr.documents.budgets import BudgetsDocument
from netmgr.documents.node import NodeDocument
from netmgr.plan.document import PlanDocument
from netmgr.prefixes import Prefix

FOLDER = Path(__file__).parents[2] / "configs" / "schemas"
DOCUMENTS: dict[str, type[BaseModel]] = {
    "budgets.yaml": BudgetsDocument,
    "node.yaml": NodeDocument,
    "plan.yaml": PlanDocument,
}
VERSION = "v1alpha1"

Schema: TypeAlias = dict[str, Any]


class Generator(GenerateJsonSchema):
    """pydantic's, with defaults as a document has them: prefixes are tuples to pydantic."""

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, Prefix):
            return str(dft)
        if isinstance(dft, tuple):
            return [self.encode_default(part) for part in dft]
        return super().encode_default(dft)


def files() -> dict[str, str]:
    """Name and content of each schema's file."""
    return {
        f"{name}.{VERSION}.json": json.dumps(generate(name), indent=2) + "\n" for name in DOCUMENTS
    }


@functools.cache
def generate(name: str) -> Schema:
    """The schema of a document, strict: it names every key that there is."""
    model = DOCUMENTS[name]
    schema = model.model_json_schema(schema_generator=Generator)
    _describe(schema, model)
    for part in _parts(schema):
        _tighten(part)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:netmgr:{name}:{VERSION}",
        **schema,
        "title": name,
    }


def _describe(schema: Schema, root: type[BaseModel]) -> None:
    """Add the docstrings of models and of their keys."""
    for model in _models(root):
        part = schema if model is root else schema["$defs"].get(model.__name__)
        if part is None:  # its keys have no form of their own in a document: `surge: 10%`
            continue
        if model.__doc__:
            part["description"] = inspect.cleandoc(model.__doc__)
        for key, text in _texts_of_keys(model).items():
            # A key that refers to a definition is described beside the reference.
            part["properties"][key]["description"] = text


def _texts_of_keys(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings behind a model's fields, by the fields' names in documents."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = next(part.body for part in ast.walk(tree) if isinstance(part, ast.ClassDef))
    texts = {}
    for field, after in pairwise(body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str() as text)):
                key = model.model_fields[name].alias if name in model.model_fields else None
                texts[key or name] = " ".join(inspect.cleandoc(text).split())
            case _:
                pass
    return texts


def _models(root: type[BaseModel]) -> set[type[BaseModel]]:
    """Every model that a document consists of."""
    models: set[type[BaseModel]] = set()
    seen: set[Any] = set()
    pending: list[Any] = [root]
    while pending:
        kind = pending.pop()
        if kind in seen:
            continue
        seen.add(kind)
        pending += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            models.add(kind)
            pending += [field.annotation for field in kind.model_fields.values()]
    return models


def _parts(schema: Any) -> Iterator[Schema]:
    """A schema and every schema in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("properties", "patternProperties", "$defs"):
        for part in schema.get(key, {}).values():
            yield from _parts(part)
    for key in ("anyOf", "prefixItems"):
        for part in schema.get(key, ()):
            yield from _parts(part)
    for key in ("items", "additionalProperties"):
        yield from _parts(schema.get(key))


def _tighten(part: Schema) -> None:
    part.pop("title", None)  # pydantic's: the key once more, with capitals
    if part.keys() & {"properties", "patternProperties"}:
        part["additionalProperties"] = False
    if part.get("type") == "boolean":
        # To YAML 1.2, which editors read, `on` is a text.
        del part["type"]
        part["enum"] = [True, False, "on", "off", "yes", "no"]
