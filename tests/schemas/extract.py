"""Writes the schema files of this folder: what Terraform's azurerm provider and Azure's own models
take.

    python tests/schemas/extract.py

The provider's arguments are read out of the types that CDK for Terraform generates from its schema,
the cloud's properties out of the serializers of Azure's JavaScript packages; npm fetches both, node
reads the latter. Only what a rendering uses is kept. A star after a name says that it must be
given.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AZURERM = ("@cdktf/provider-azurerm", "14.23.1")
RESOURCES = (
    "linux_virtual_machine",
    "linux_virtual_machine_scale_set",
    "nat_gateway",
    "nat_gateway_public_ip_association",
    "network_interface",
    "network_security_group",
    "public_ip",
    "resource_group",
    "route_table",
    "subnet",
    "subnet_nat_gateway_association",
    "subnet_network_security_group_association",
    "subnet_route_table_association",
    "virtual_network",
    "virtual_network_peering",
)

AZURE = {"Microsoft.Network": ("@azure/arm-network", "33.5.0", "2024-05-01")}
"""Package, its version, and the version of the API that it speaks."""
MODELS = {"Microsoft.Network": ("NetworkInterface", "NetworkInterfaceIPConfiguration")}

_PRINT_MAPPERS = """
import * as mappers from "MODULE";
const plain = {};
for (const [name, mapper] of Object.entries(mappers)) plain[name] = mapper.type?.modelProperties;
console.log(JSON.stringify(plain));
"""
_ENTRY = re.compile(
    r"^ {8,12}(\w+): \{\n\s+value: .*?(?:struct|this)\._?(\w+).*\n\s+isBlock: (true|false),\n"
    r"\s+type: \"(\w+)\",\n\s+storageClassType: \"(\w+)\",",
    re.MULTILINE,
)
"""An argument: its name, its property's name, whether it is a block, and its type."""


def package(name: str, version: str, into: Path) -> Path:
    """A package of the registry, unpacked."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", f"{name}@{version}"],
        cwd=into,
        check=True,
        capture_output=True,
        text=True,
    )
    folder = into / name.replace("/", "-")
    folder.mkdir()
    subprocess.run(["tar", "-xzf", into / packed.stdout.split()[-1], "-C", folder], check=True)
    return folder / "package"


def azurerm(into: Path) -> dict[str, Any]:
    """Arguments and blocks of the resources, by Terraform's names."""
    folder = package(*AZURERM, into)
    provider = json.loads((folder / "package.json").read_text())["cdktf"]["provider"]["version"]
    found = {}
    for kind in RESOURCES:
        room = folder / "lib" / kind.replace("_", "-")
        code, types = (room / "index.js").read_text(), (room / "index.d.ts").read_text()
        own = re.search(r"export interface (\w+)Config extends", types)
        assert own, kind
        found[f"azurerm_{kind}"] = dict(_arguments(code, types, own[1], ""))
    return {
        "provider": f"hashicorp/azurerm {provider}",
        "source": _source(AZURERM),
        "resources": found,
    }


def _arguments(code: str, types: str, resource: str, block: str) -> Iterator[tuple[str, Any]]:
    """Of a resource itself, or of one of its blocks."""
    interface = f"{resource}{block}" if block else f"{resource}Config"
    begin = (
        f"function {interface[0].lower()}{interface[1:]}ToHclTerraform("
        if block
        else "synthesizeHclAttributes()"
    )
    body = code[code.index(begin) :]
    body = body[: body.index("\n    };" if block else "\n        };")]
    members = re.search(rf"export interface {interface} .*?^\}}", types, re.MULTILINE | re.DOTALL)
    assert members, interface
    for name, member, is_block, _, storage in _ENTRY.findall(body):
        required = re.search(rf"readonly {member}(\??):", members[0])
        assert required, (interface, member)
        star = "" if required[1] else "*"
        if is_block == "true":
            inner = storage.removesuffix("List").removeprefix(resource)
            yield f"{name}{star}", dict(_arguments(code, types, resource, inner))
        else:
            yield f"{name}{star}", storage


def azure(into: Path) -> dict[str, Any]:
    """Properties of the models, by the names and at the depth that they have in a request."""
    found: dict[str, Any] = {}
    for provider, (name, version, api) in AZURE.items():
        module = next(
            path
            for path in package(name, version, into).rglob("models/mappers.js")
            if "esm" in str(path)
        )
        code = _PRINT_MAPPERS.replace("MODULE", str(module))
        printed = subprocess.run(
            ["node", "--input-type=module", "-e", code], check=True, capture_output=True, text=True
        )
        mappers = json.loads(printed.stdout)
        models = {model: dict(_properties(mappers[model])) for model in MODELS[provider]}
        found[provider] = {"api": api, "source": _source((name, version)), "models": models}
    return found


def _properties(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for each in model.values():
        if not each.get("readOnly"):
            yield (
                each["serializedName"] + ("*" if each.get("required") else ""),
                _type(each["type"]),
            )


def _type(kind: dict[str, Any]) -> str:
    if kind["name"] == "Sequence":
        return f"[{_type(kind['element']['type'])}]"
    return kind["className"] if kind["name"] == "Composite" else kind["name"]


def _source(origin: tuple[str, ...]) -> str:
    return f"npm {origin[0]} {origin[1]}, {datetime.now(UTC):%Y-%m-%d}"


def main() -> None:
    """Fetch, read, write."""
    with tempfile.TemporaryDirectory() as folder:
        for name, schema in (("azurerm", azurerm(Path(folder))), ("azure", azure(Path(folder)))):
            (HERE / f"{name}.json").write_text(
                json.dumps(schema, indent=1) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
