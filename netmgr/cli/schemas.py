"""`netmgr schema`: JSON Schemas of what commands answer and of the documents that people write.

They are generated from the types that the code itself is checked against. `configs/schemas` has
them as files; a test holds both together, and real answers against them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import operator
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typer

from netmgr.errors import RequestError

Schema: TypeAlias = dict[str, Any]

ANSWERS = {
    "connectivity-test": "netmgr.cli.answers:ConnectivityReport",
    "doctor": "netmgr.cli.answers:Examination",
    "lab run": "netmgr.cli.answers:LabRun",
    "lab show": "netmgr.lab.live:Live",
    "lab status": "netmgr.lab.live:LabStatus",
    "lab traffic": "netmgr.lab.comparison:LabTraffic",
    "lab up": "netmgr.lab.live:LabStatus",
    "lab verify": "netmgr.lab.verify:LabVerification",
    "nat status": "netmgr.api.snapshot:NatAnswer",
    "node audit": "netmgr.api.snapshot:AuditView",
    "node explain": "netmgr.documents.explain:ExplanationView",
    "node pods": "netmgr.cli.answers:NodePods",
    "node status": "netmgr.api.snapshot:NodeStatus",
    "plan advise max-pods": "netmgr.cli.answers:MaxPods",
    "plan check": "netmgr.cli.answers:AnyCheck",
    "plan diff": "netmgr.cli.answers:PlanDiff",
    "plan dry-run upgrade": "netmgr.cli.answers:Upgrade",
    "plan explain": "netmgr.plan.explain:Answer",
    "plan grow": "netmgr.cli.answers:PlanGrowth",
    "plan reach": "netmgr.cli.answers:Reach",
    "plan show": "netmgr.plan.lock:LockDocument",
    "preflight": "netmgr.cli.answers:PreflightReport",
    "simulate": "netmgr.simulation.report:Report",
    "status": "netmgr.cli.answers:AnyStatus",
    "usage": "netmgr.cli.answers:UsageDocument",
    "version": "netmgr.cli.answers:VersionOfNetmgr",
}
"""The type of what each command with `-o json` prints."""

VERSIONS = {"plan show": 3}
"""The key `version` of those whose first form is no longer printed; of `plan show` the lock's."""

DOCUMENTS = {
    "node.yaml": "netmgr.documents.node:NodeDocument",
    "plan.yaml": "netmgr.plan.document:PlanDocument",
}
"""What people write, and editors complete."""


class Published(NamedTuple):
    """A schema's name, its version as its document has it, and where its type is."""

    name: str
    title: str
    version: str
    where: str

    @property
    def file(self) -> str:
        """Its name in `configs/schemas`."""
        return f"{self.name}.{self.version}.json"


PUBLISHED = {
    each.name: each
    for each in (
        *(
            Published(
                command.replace(" ", "-"),
                f"netmgr {command} -o json",
                f"v{VERSIONS.get(command, 1)}",
                where,
            )
            for command, where in ANSWERS.items()
        ),
        *(Published(name, name, "v1alpha1", where) for name, where in DOCUMENTS.items()),
    )
}


def _names() -> list[str]:
    return list(PUBLISHED)


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one.", autocompletion=_names)
    ] = None,
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write all of them to this folder.")
    ] = None,
) -> None:
    """Print the JSON Schema of a command's JSON, or of a document; without a name, list them.

    For an editor that completes keys: netmgr schema plan.yaml > plan.schema.json, and
    `# yaml-language-server: $schema=plan.schema.json` as the first line of the plan.
    """
    if to is not None:
        from netmgr.durable import make_folder, write_many

        make_folder(to)
        texts = ((each.file, text(each).encode()) for each in PUBLISHED.values())
        typer.echo(f"wrote {write_many(to, texts)} schemas to {to}")
    elif name is None:
        for each in PUBLISHED.values():
            typer.echo(f"{each.name:<22} {each.title}")
    elif name in PUBLISHED:
        typer.echo(text(PUBLISHED[name]), nl=False)
    else:
        raise RequestError(f"there is no schema {name}; there are {', '.join(PUBLISHED)}")


def text(published: Published) -> str:
    """A schema as its file has it."""
    return json.dumps(generate(published), indent=2) + "\n"


def generate(published: Published) -> Schema:
    """The schema of one type, strict: it names every key that this release knows."""
    from pydantic import BaseModel, TypeAdapter

    module, _, attribute = published.where.partition(":")
    kind = getattr(import_module(module), attribute)
    is_written = published.name in DOCUMENTS
    # A model's own keys may be left out where they are at their default; all others are there.
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    mode: Literal["validation", "serialization"] = "validation" if is_model else "serialization"
    found = TypeAdapter(_modern(kind)).json_schema(mode=mode, schema_generator=_generator())
    _describe(found, {each.__name__: each for each in _classes(kind)}, kind)
    for part in _parts(found):
        _tighten(part, is_written=is_written)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:netmgr:{published.name}:{published.version}",
        **found,
        "title": published.title,
    }


@functools.cache
def _generator() -> Any:  # noqa: ANN401  a class that is made of an imported one
    from pydantic.json_schema import GenerateJsonSchema

    from netmgr.prefixes import Prefix

    class Generator(GenerateJsonSchema):
        """pydantic's, for our answers and documents."""

        def encode_default(self, dft: Any) -> Any:  # noqa: ANN401  pydantic's own
            """A default as a document has it: prefixes are tuples to pydantic."""
            if isinstance(dft, Prefix):
                return str(dft)
            if isinstance(dft, tuple):
                return [self.encode_default(each) for each in dft]
            return super().encode_default(dft)

        # In an answer of a dataclass what has a default is there all the same.
        def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, FBT001  pydantic's own
            if field["type"] == "dataclass-field":
                return True
            return super().field_is_required(field, total)

    return Generator


@functools.cache
def _modern(kind: Any) -> Any:  # noqa: ANN401  any type
    """A type whose TypedDicts pydantic takes before Python 3.12: those of typing_extensions."""
    import typing_extensions

    typed_dict: Any = typing_extensions.TypedDict
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return typed_dict(kind.__name__, {name: _modern(hint) for name, hint in hints.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if not arguments or origin is Literal:
        return kind
    first, *others = map(_modern, arguments)
    if origin is UnionType:
        return functools.reduce(operator.or_, others, first)
    return origin[first, *others] if others else origin[first]


def _describe(found: Schema, classes: dict[str, type], root: type) -> None:
    """Add the docstrings of classes and of their keys."""
    for name, kind in classes.items():
        part = found if kind is root else found.get("$defs", {}).get(name)
        if part is None:  # its keys have no form of their own in a document: `surge: 10%`
            continue
        if kind.__doc__:
            part["description"] = inspect.cleandoc(kind.__doc__)
        for key, said in _said_of_keys(kind).items():
            # A key that refers to a definition is described beside the reference.
            part["properties"][key]["description"] = said


def _said_of_keys(kind: type) -> dict[str, str]:
    """The docstrings behind the fields of a class, by the fields' names in documents."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except OSError:  # it was made by a call, or the sources are not there
        return {}
    fields = getattr(kind, "model_fields", {})
    found = {}
    body = next(part.body for part in ast.walk(tree) if isinstance(part, ast.ClassDef))
    for field, after in pairwise(body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str() as said)):
                key = fields[name].alias if name in fields else None
                found[key or name] = " ".join(inspect.cleandoc(said).split())
            case _:
                pass
    return found


def _classes(kind: Any) -> set[type]:  # noqa: ANN401  any type
    """Every class with keys that a type consists of."""
    found: set[type] = set()
    pending = [kind]
    while pending:
        each = pending.pop()
        if each not in found:
            keys = _keys(each)
            if keys:
                found.add(each)
            pending += [*keys.values(), *get_args(each)]
    return found


def _keys(kind: Any) -> dict[str, Any]:  # noqa: ANN401  any type
    if hasattr(kind, "model_fields"):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    is_record = is_typeddict(kind) or is_dataclass(kind)
    return get_type_hints(kind) if isinstance(kind, type) and is_record else {}


def _parts(schema: Any) -> Iterator[Schema]:  # noqa: ANN401  a part may be `true`
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


def _tighten(part: Schema, *, is_written: bool) -> None:
    part.pop("title", None)  # pydantic's: the key once more, with capitals
    if part.keys() & {"properties", "patternProperties"}:
        part["additionalProperties"] = False
    if is_written and part.get("type") == "boolean":
        # To YAML 1.2, which editors read, `on` is a text.
        del part["type"]
        part["enum"] = [True, False, "on", "off", "yes", "no"]
