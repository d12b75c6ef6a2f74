"""Azure Resource Manager's resources as data, and an ARM template of them.

In the data three kinds of value are not yet text: a parameter, another resource's id, and a
subnet's. An ARM template and Bicep write those differently and everything else alike, so
both are printed from the same resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
VNET = "Microsoft.Network/virtualNetworks"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that the operator gives."""

    name: str


@dataclass(frozen=True, slots=True)
class Filled:
    """Text with a parameter's value in place of its one `{}`."""

    text: str
    parameter: Parameter


@dataclass(frozen=True, slots=True)
class Id:
    """The id of a resource of this deployment."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class SubnetId:
    """The id of a subnet of this deployment."""

    vnet: str
    subnet: str


Value = Parameter | Filled | Id | SubnetId | str | int | bool | Sequence["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource.

    Attributes:
        name: for a child, the parent's and its own, with a slash.
        after: what must be there first and is not referred to.
    """

    type: str
    version: str
    name: str
    properties: Mapping[str, Value]
    location: str = ""
    sku: Mapping[str, Value] = field(default_factory=dict)
    after: tuple[Id, ...] = ()

    @property
    def id(self) -> Id:
        """What others refer to it by."""
        return Id(self.type, self.name)


def template(parameters: Iterable[str], resources: Iterable[Resource]) -> str:
    """The ARM template, as JSON."""
    document = {
        "$schema": SCHEMA,
        "contentVersion": "1.0.0.0",
        "parameters": {name: {"type": "string"} for name in parameters},
        "resources": [_printed(resource) for resource in resources],
    }
    return json.dumps(document, indent=2) + "\n"


def _printed(resource: Resource) -> dict[str, object]:
    needed = dict.fromkeys([*resource.after, *_referred(resource.properties)])
    return {
        "type": resource.type,
        "apiVersion": resource.version,
        "name": resource.name,
        **({"location": resource.location} if resource.location else {}),
        **({"sku": as_json(resource.sku)} if resource.sku else {}),
        **({"dependsOn": [as_json(each) for each in needed]} if needed else {}),
        "properties": as_json(resource.properties),
    }


def _referred(value: Value) -> Iterator[Id]:
    match value:
        case Id():
            yield value
        case SubnetId():
            yield Id(VNET, value.vnet)
        case Mapping():
            for item in value.values():
                yield from _referred(item)
        case list() | tuple():
            for item in value:
                yield from _referred(item)
        case _:
            return


def as_json(value: Value) -> object:
    """A value as an ARM template has it: what is not yet text as a template expression."""
    match value:
        case Mapping():
            return {name: as_json(item) for name, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case Parameter() | Filled() | Id() | SubnetId():
            return f"[{_expression(value)}]"
        case _:
            return value


def _expression(value: Parameter | Filled | Id | SubnetId) -> str:
    match value:
        case Parameter():
            return f"parameters('{value.name}')"
        case Filled():
            return f"format('{value.text.replace('{}', '{0}')}', {_expression(value.parameter)})"
        case Id():
            return f"resourceId('{value.type}', {_arguments(*value.name.split('/'))})"
        case SubnetId():
            return f"resourceId('{VNET}/subnets', {_arguments(value.vnet, value.subnet)})"


def _arguments(*names: str) -> str:
    return ", ".join(f"'{name}'" for name in names)
