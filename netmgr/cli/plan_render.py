"""`netmgr plan render`: what the plan becomes on nodes, in clusters and in the cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli.plan_common import DEFAULT_FILE, File, Planned, answer, load

if TYPE_CHECKING:
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.network import Network
    from netmgr.plan.nodes import PlannedNode
    from netmgr.sites import Role

app = typer.Typer(no_args_is_help=True, help="Render nodes' documents, cluster objects and cloud resources.")

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="<cluster>-<node pool>-<number>, numbers from 0.")]
ClusterName = Annotated[str, typer.Argument(help="Name of the cluster.")]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where to write it [default: standard output]")]


ReaderGroup = Annotated[str | None, typer.Option(help="Group that may read the agent's ledger socket.")]


@app.command()
def node(name: NodeName, *, file: File = DEFAULT_FILE, reader_group: ReaderGroup = None, to: To = None) -> None:
    """Render node.yaml, the document of one node's agent."""
    from netmgr.render.node import Documents

    given = up_to_date(file)
    document = Documents(given.plan, given.locked, reader_group).of_node(_named(given, name))
    _write_document(to, file, document, f"node {name}")


@app.command()
def router(
    name: Annotated[str, typer.Argument(metavar="ROUTER", help="router-<number>.hub, numbers from 0.")],
    *,
    file: File = DEFAULT_FILE,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render node.yaml of a hub's router: no packet from spoke to spoke, and the spokes' way to the internet."""
    from netmgr.sites import Role

    _write_document(to, file, _of_host(file, Role.HUB_ROUTER, name, reader_group), f"router {name}")


@app.command("nat-host")
def nat_host(
    name: Annotated[str, typer.Argument(metavar="HOST", help="nat-<number>.<cluster>, numbers from 0.")],
    *,
    file: File = DEFAULT_FILE,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render node.yaml of a cluster's NAT host: how the hub sees the cluster's Services."""
    from netmgr.sites import Role

    _write_document(to, file, _of_host(file, Role.NAT_HOST, name, reader_group), f"nat-host {name}")


@app.command()
def machines(
    *,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write <name>.yaml of each; made if missing.")],
    file: File = DEFAULT_FILE,
    reader_group: ReaderGroup = None,
) -> None:
    """Render node.yaml of every machine: the hub's routers, NAT hosts, and all nodes."""
    from netmgr.durable import make_folder, write_many
    from netmgr.plan_files import to_yaml
    from netmgr.render.node import Documents

    given = up_to_date(file)
    make_folder(to)
    documents = Documents(given.plan, given.locked, reader_group)
    sites, common = to_yaml(documents.sites), to_yaml(documents.common)
    texts = (
        (f"{name}.yaml", f"{to_yaml(head)}{sites}{to_yaml(own) if own else ''}{common}".encode())
        for name, head, own in documents.every_own()
    )
    typer.echo(f"wrote {write_many(to, texts):,} documents to {to}", err=True)


class TemplateRole(StrEnum):
    """Whose template is asked for."""

    NODE = "node"
    NAT_HOST = "nat-host"


@app.command()
def template(
    cluster: ClusterName,
    *,
    file: File = DEFAULT_FILE,
    role: Annotated[TemplateRole, typer.Option(help="Of nodes, or of NAT hosts.")] = TemplateRole.NODE,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render what all nodes of a cluster are told alike, for `netmgr kube node --template`: the Node says the rest."""
    from netmgr.plan_files import to_yaml
    from netmgr.render.node import Documents
    from netmgr.sites import Role

    given = up_to_date(file)
    _refuse_unknown(given, cluster)
    found = Documents(given.plan, given.locked, reader_group).template(cluster, Role(role))
    command = f"template {cluster}{'' if role is TemplateRole.NODE else f' --role {role}'}"
    write(to, f"# Of {file.name}, by `netmgr plan render {command}`.\n{to_yaml(found)}")


def _refuse_unknown(given: Planned, cluster: str) -> None:
    from netmgr.errors import ConfigError

    if cluster not in given.plan.clusters:
        known = ", ".join(given.plan.clusters) or "none"
        raise ConfigError(f"{given.path}: clusters: has no {cluster!r}; there are {known}")


def _of_host(file: Path, role: Role, name: str, reader_group: str | None) -> dict[str, Any]:
    from netmgr.errors import ConfigError
    from netmgr.plan import hosts
    from netmgr.render.node import Documents

    given = up_to_date(file)
    if host := hosts.named(given.locked, role, name):
        return Documents(given.plan, given.locked, reader_group).of_host(host)
    known = ", ".join(host.name for host in hosts.hosts(given.locked) if host.role is role)
    raise ConfigError(f"{given.lock_path}: has no {role} {name!r}; there are {known or 'none'}")


def _write_document(to: Path | None, file: Path, document: dict[str, Any], command: str) -> None:
    """Write a node.yaml that an agent will take: what it would refuse is a fault here."""
    from netmgr import documents
    from netmgr.config import NodeDocument
    from netmgr.plan_files import to_yaml

    text = f"# Of {file.name}, by `netmgr plan render {command}`.\n{to_yaml(document)}"
    documents.parse(text, f"the node.yaml of {document['node']['name']}", NodeDocument)
    write(to, text)


def _named(given: Planned, name: str) -> PlannedNode:
    from netmgr.errors import ConfigError
    from netmgr.plan import nodes

    planned = nodes.named(given.locked, name)
    if planned is None:
        pools = dict.fromkeys(f"{cluster}-{pool}-0" for cluster, pool, _ in nodes.segments(given.locked))
        raise ConfigError(
            f"{given.lock_path}: has no place for a node {name!r}; there are {', '.join(pools) or 'none'} …"
        )
    return planned


@app.command()
def conflist(
    *,
    network: Annotated[str, typer.Option(help="Name of the network, as in the nodes' documents.")] = "netmgr",
    to: To = None,
) -> None:
    """Render the CNI network configuration, the same on every node."""
    from cni.install import Installation
    from cni.install import conflist as configuration

    folder = Path("/opt/cni/bin")
    write(to, json.dumps(configuration(Installation(folder, folder, network=network)), indent=2) + "\n")


@app.command()
def kubernetes(
    cluster: ClusterName,
    *,
    file: File = DEFAULT_FILE,
    image: Annotated[str | None, typer.Option(help="Image that has netmgr [default: netmgr:<version>]")] = None,
    to: To = None,
) -> None:
    """Render what to apply to a cluster: plan and lock, and a DaemonSet that needs no API credentials."""
    import yaml

    from netmgr import __version__
    from netmgr.render.kubernetes import objects

    given = up_to_date(file)
    _refuse_unknown(given, cluster)
    documents = {"plan.yaml": file.read_text("utf-8"), "plan.lock.yaml": given.lock_path.read_text("utf-8")}
    # kube-apiserver's --service-cluster-ip-range takes one range a family, joined by a comma.
    services = ",".join(str(real) for _, real in given.locked.clusters[cluster].services.pairs)
    every = objects(documents, services, image or f"netmgr:{__version__}")
    write(to, yaml.dump_all(every, Dumper=yaml.CSafeDumper, sort_keys=False, width=1 << 20))


@app.command()
def terraform(*, file: File = DEFAULT_FILE, to: To = None) -> None:
    """Render Terraform (azurerm 4): VNets, subnets, peerings, routes, security groups, gateways, scale sets."""
    from netmgr.render.terraform import terraform as rendered

    write(to, _cloud(file, rendered))


@app.command()
def bicep(*, file: File = DEFAULT_FILE, to: To = None) -> None:
    """Render the same resources as Bicep."""
    from netmgr.render.bicep import bicep as rendered

    write(to, _cloud(file, rendered))


@app.command()
def arm(*, file: File = DEFAULT_FILE, to: To = None) -> None:
    """Render the same resources as an ARM template (JSON)."""
    from netmgr.render.azure import template

    write(to, _cloud(file, template))


@app.command()
def nic(name: NodeName, *, file: File = DEFAULT_FILE, to: To = None) -> None:
    """Render one node's network interface with its blocks (ARM template), which no scale set can carry."""
    from netmgr.plan.derive import segment_subnet
    from netmgr.render.nic import network_interface

    given = up_to_date(file)
    planned = _named(given, name)
    write(to, network_interface(given.plan, planned, segment_subnet(given.locked, planned)))


def _cloud(file: Path, rendered: Callable[[PlanDocument, Network], str]) -> str:
    from netmgr.plan.derive import network

    given = up_to_date(file)
    return rendered(given.plan, network(given.plan, given.locked, given.limits))


def up_to_date(file: Path) -> Planned:
    """A plan whose lock answers it.

    Raises:
        ConfigError: there is no lock, or it answers an older plan; says what to run.
    """
    from netmgr.errors import ConfigError

    given = load(file)
    if answer(given) != given.locked:
        raise ConfigError(f"{given.lock_path}: does not answer {file} as it is now; run: netmgr plan lock -f {file}")
    return given


def write(to: Path | None, text: str) -> None:
    """Replace a file in one step, or print."""
    from netmgr.durable import write_text

    if to is None:
        typer.echo(text, nl=False)
        return
    write_text(to, text)
    typer.echo(f"wrote {to}", err=True)
