"""Azure Resource Manager's resources as data, printed as an ARM template or as Bicep.

In the data four kinds of value are not text yet: a parameter, text around one, another resource's
id, and a subnet's. An ARM template and Bicep write those differently and everything else alike,
so both are printed from the same resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
NETWORK_VERSION, COMPUTE_VERSION = "2024-05-01", "2024-07-01"

VNET = "Microsoft.Network/virtualNetworks"
PEERING = "Microsoft.Network/virtualNetworks/virtualNetworkPeerings"
TABLE, GROUP = "Microsoft.Network/routeTables", "Microsoft.Network/networkSecurityGroups"
GATEWAY, PUBLIC_IP = "Microsoft.Network/natGateways", "Microsoft.Network/publicIPAddresses"
INTERFACE = "Microsoft.Network/networkInterfaces"
SCALE_SET = "Microsoft.Compute/virtualMachineScaleSets"

_INDENT = "  "
_SYMBOLS = {
    VNET: "vnet",
    PEERING: "peering",
    TABLE: "table",
    GROUP: "group",
    GATEWAY: "gateway",
    PUBLIC_IP: "address",
    SCALE_SET: "nodes",
}


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


Value = (
    Parameter
    | Filled
    | Id
    | SubnetId
    | str
    | int
    | bool
    | Sequence["Value"]
    | Mapping[str, "Value"]
)


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
    """The ARM template of resources that refer to each other."""
    return template_text(
        [_printed(resource) for resource in resources],
        {"parameters": {name: {"type": "string"} for name in parameters}},
    )


def template_text(resources: Sequence[object], head: Mapping[str, object] | None = None) -> str:
    """An ARM template as JSON; `head` is what it has beside its resources."""
    start = {"$schema": SCHEMA, "contentVersion": "1.0.0.0", **(head or {})}
    return json.dumps(start | {"resources": resources}, indent=2) + "\n"


def _printed(resource: Resource) -> dict[str, object]:
    # Without dependsOn ARM makes everything at once, and a reference to what is not there yet
    # fails.
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


def bicep(parameters: Iterable[str], secret: str, resources: Iterable[Resource]) -> str:
    """One Bicep file; `secret` names the parameter whose value is not logged."""
    heads = [
        f"@secure()\nparam {name} string" if name == secret else f"param {name} string"
        for name in parameters
    ]
    return "\n\n".join([*heads, *map(_bicep_resource, resources)]) + "\n"


def symbol(identity: Id) -> str:
    """The symbolic name of a resource. Two names never give one symbol."""
    own = identity.name.rpartition("/")[2].replace("_", "__").replace("-", "_")
    return f"{_SYMBOLS[identity.type]}_{own}"


def quote(text: str) -> str:
    """A string literal; `${`, which would begin an interpolation, is escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"


def _bicep_resource(resource: Resource) -> str:
    parent, _, name = resource.name.rpartition("/")
    body: dict[str, Value] = {"name": name}
    if resource.location:
        body["location"] = resource.location
    if resource.sku:
        body["sku"] = resource.sku
    body["properties"] = resource.properties
    lines = [f"resource {symbol(resource.id)} {quote(f'{resource.type}@{resource.version}')} = {{"]
    if parent:
        lines.append(f"{_INDENT}parent: {symbol(Id(VNET, parent))}")
    lines += _members(body, 1)
    # `parent` says the same of the first one already.
    awaited = [each for each in resource.after if each != Id(VNET, parent)]
    if awaited:
        lines += [
            f"{_INDENT}dependsOn: [",
            *(f"{_INDENT * 2}{symbol(each)}" for each in awaited),
            f"{_INDENT}]",
        ]
    return "\n".join([*lines, "}"])


def _members(body: Mapping[str, Value], depth: int) -> Iterator[str]:
    return (f"{_INDENT * depth}{name}: {_value(value, depth)}" for name, value in body.items())


def _value(value: Value, depth: int) -> str:
    match value:
        case Parameter():
            text = value.name
        case Filled():
            before, after = (quote(part)[1:-1] for part in value.text.split("{}"))
            text = f"'{before}${{{value.parameter.name}}}{after}'"
        case Id():
            text = f"{symbol(value)}.id"
        case SubnetId():
            # Subnets are part of their network's resource and have no symbol of their own.
            text = f"'${{{symbol(Id(VNET, value.vnet))}.id}}/subnets/{value.subnet}'"
        case str():
            text = quote(value)
        # Before int: a bool is one in Python.
        case bool():
            text = "true" if value else "false"
        case int():
            text = str(value)
        case Mapping():
            text = "\n".join(["{", *_members(value, depth + 1), f"{_INDENT * depth}}}"])
        case _:
            text = _list([_value(item, depth + 1) for item in value], depth)
    return text


def _list(items: list[str], depth: int) -> str:
    if not items:
        return "[]"
    return "\n".join(
        ["[", *(f"{_INDENT * (depth + 1)}{item}" for item in items), f"{_INDENT * depth}]"]
    )
