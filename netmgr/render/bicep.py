"""The planned network as Bicep, printed from the same resources as the ARM template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netmgr.plan.document import PlanDocument
from netmgr.plan.network import Network
from netmgr.render.arm import VNET, Filled, Id, Parameter, Resource, SubnetId, Value
from netmgr.render.azure import GATEWAY, GROUP, PARAMETERS, PEERING, PUBLIC_IP, SCALE_SET, TABLE, resources

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


def bicep(plan: PlanDocument, network: Network) -> str:
    """One file with every resource.

    Raises:
        ConfigError: the plan has no cloud.
    """
    heads = [
        f"@secure()\nparam {name} string" if name == "sshPublicKey" else f"param {name} string" for name in PARAMETERS
    ]
    return "\n\n".join([*heads, *map(_resource, resources(plan, network))]) + "\n"


def symbol(identity: Id) -> str:
    """The symbolic name of a resource: letters, digits and underscores; two names never give one symbol."""
    own = identity.name.rpartition("/")[2].replace("_", "__").replace("-", "_")
    return f"{_SYMBOLS[identity.type]}_{own}"


def quote(text: str) -> str:
    """A string literal; `${`, which would begin an interpolation, is escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"


def _resource(resource: Resource) -> str:
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
        lines += [f"{_INDENT}dependsOn: [", *(f"{_INDENT * 2}{symbol(each)}" for each in awaited), f"{_INDENT}]"]
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
            text = f"'${{{symbol(Id(VNET, value.vnet))}.id}}/subnets/{value.subnet}'"
        case str():
            text = quote(value)
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
    return "\n".join(["[", *(f"{_INDENT * (depth + 1)}{item}" for item in items), f"{_INDENT * depth}]"])
