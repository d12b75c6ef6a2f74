"""`netmgr plan render`: what the plan becomes on nodes, in clusters and in the cloud."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

import netmgr
from netmgr.cli import completion
from netmgr.cli.options import DEFAULT_PLAN, ClusterName, PlanFile, To
from netmgr.cli.plan_common import Planned, up_to_date, write
from netmgr.documents import loader
from netmgr.documents.sites import Role
from netmgr.durable import make_folder, write_many
from netmgr.errors import ConfigError
from netmgr.plan.clouds import registry
from netmgr.plan.files import to_yaml
from netmgr.plan.machines import PlannedHost, PlannedNode, hosts, node_named, segments
from netmgr.plan.render.kubernetes import objects
from netmgr.plan.render.node import Documents

app = typer.Typer(no_args_is_help=True)

NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="<cluster>-<node pool>-<number>, numbers from 0.",
        autocompletion=completion.first_nodes,
    ),
]
ReaderGroup = Annotated[
    str | None, typer.Option(help="Group that may read the agent's ledger socket.")
]


@app.command()
def node(
    name: NodeName,
    *,
    file: PlanFile = DEFAULT_PLAN,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render node.yaml of one node."""
    _write_document(file, Role.NODE, name, reader_group, to)


@app.command()
def router(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ROUTER",
            help="router-<number>.hub, numbers from 0.",
            autocompletion=completion.routers,
        ),
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render node.yaml of a hub router."""
    _write_document(file, Role.HUB_ROUTER, name, reader_group, to)


@app.command("nat-host")
def nat_host(
    name: Annotated[
        str,
        typer.Argument(
            metavar="HOST",
            help="nat-<number>.<cluster>, numbers from 0.",
            autocompletion=completion.nat_hosts,
        ),
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render node.yaml of a cluster's NAT host."""
    _write_document(file, Role.NAT_HOST, name, reader_group, to)


@app.command()
def machines(
    *,
    to: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Where to write <name>.yaml of each; created if missing."
        ),
    ],
    file: PlanFile = DEFAULT_PLAN,
    reader_group: ReaderGroup = None,
) -> None:
    """Render node.yaml of every machine."""
    given = up_to_date(file)
    make_folder(to)
    documents = Documents(given.plan, given.locked, reader_group)
    # Rendered once: with many clusters nearly all of a document is the same in each.
    sites, common = to_yaml(documents.sites), to_yaml(documents.common)

    def text(machine: PlannedHost | PlannedNode) -> bytes:
        head, own = documents.parts(machine)
        return f"{to_yaml(head)}{sites}{to_yaml(own) if own else ''}{common}".encode()

    texts = ((f"{machine.name}.yaml", text(machine)) for machine in documents.machines())
    typer.echo(f"wrote {write_many(to, texts):,} documents to {to}", err=True)


class TemplateRole(StrEnum):
    NODE = "node"
    NAT_HOST = "nat-host"


@app.command()
def template(
    cluster: ClusterName,
    *,
    file: PlanFile = DEFAULT_PLAN,
    role: Annotated[
        TemplateRole, typer.Option(help="For nodes, or for NAT hosts.")
    ] = TemplateRole.NODE,
    pool: Annotated[
        str,
        typer.Option(
            help="Of this node pool; a scale set's nodes ask the cloud for their ranges.",
            autocompletion=completion.node_pools,
        ),
    ] = "",
    reader_group: ReaderGroup = None,
    to: To = None,
) -> None:
    """Render what a cluster's nodes have in common.

    It is the template of `netmgr kube node`.
    """
    given = _with_pool(file, cluster, pool) if pool else _with_cluster(file, cluster)
    document = Documents(given.plan, given.locked, reader_group).template(cluster, Role(role), pool)
    command = f"template {cluster}{'' if role is TemplateRole.NODE else f' --role {role}'}"
    command += f" --pool {pool}" if pool else ""
    write(to, f"{_origin(file, command)}{to_yaml(document)}")


def _with_cluster(file: Path, cluster: str) -> Planned:
    given = up_to_date(file)
    if cluster not in given.plan.clusters:
        known = ", ".join(given.plan.clusters) or "none"
        raise ConfigError(f"{file}: clusters: has no {cluster!r}; there are {known}")
    return given


def _with_pool(file: Path, cluster: str, pool: str) -> Planned:
    given = _with_cluster(file, cluster)
    if pool not in (pools := given.plan.clusters[cluster].node_pools):
        raise ConfigError(
            f"{file}: {cluster} has no node pool {pool!r}; there are {', '.join(pools)}"
        )
    return given


def _origin(file: Path, command: str) -> str:
    return f"# Of {file.name}, by `netmgr plan render {command}`.\n"


def _write_document(
    file: Path, role: Role, name: str, reader_group: str | None, to: Path | None
) -> None:
    from netmgr.documents.node import NodeDocument

    given = up_to_date(file)
    machine = _named(given, name) if role is Role.NODE else _host(given, role, name)
    document = Documents(given.plan, given.locked, reader_group).of(machine)
    command = "router" if role is Role.HUB_ROUTER else str(role)
    text = f"{_origin(file, f'{command} {name}')}{to_yaml(document)}"
    # As its agent will: the plan and a node's document are validated by different rules.
    loader.parse(text, f"the node.yaml of {machine.name}", NodeDocument)
    write(to, text)


def _host(given: Planned, role: Role, name: str) -> PlannedHost:
    planned = {host.name: host for host in hosts(given.locked) if host.role is role}
    if name not in planned:
        known = ", ".join(planned) or "none"
        raise ConfigError(f"{given.lock_path}: has no {role} {name!r}; there are {known}")
    return planned[name]


def _named(given: Planned, name: str) -> PlannedNode:
    if planned := node_named(given.locked, name):
        return planned
    pools = dict.fromkeys(f"{cluster}-{pool}-0" for cluster, pool, _ in segments(given.locked))
    known = ", ".join(pools) or "none"
    raise ConfigError(f"{given.lock_path}: has no place for a node {name!r}; there are {known} …")


@app.command()
def kubelet(
    cluster: ClusterName,
    pool: Annotated[
        str,
        typer.Argument(
            metavar="POOL", help="A node pool of it.", autocompletion=completion.node_pools
        ),
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
    to: To = None,
) -> None:
    """Render the kubelet's maxPods for a node pool: as many pods as each node has addresses.

    A file for kubelet's --config-dir. Pods with the host's network count there, too, and need no
    address: as many addresses stay for those in cooldown.
    """
    pools = _with_pool(file, cluster, pool).locked.clusters[cluster].node_pools
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    most = f"maxPods: {pools[pool].addresses_per_node}\n"
    write(to, f"{_origin(file, f'kubelet {cluster} {pool}')}{head}{most}")


@app.command()
def conflist(
    *,
    network: Annotated[str, typer.Option(help="Name of the network, as in node.yaml.")] = "netmgr",
    to: To = None,
) -> None:
    """Render the CNI network configuration, the same on every node."""
    from cni.install import Installation
    from cni.install import conflist as configuration

    folder = Path("/opt/cni/bin")
    # Whether there is a portmap here says nothing about the nodes.
    installation = Installation(folder, folder, network=network, portmap=False)
    write(to, f"{json.dumps(configuration(installation), indent=2)}\n")


def _share(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*|[1-9][0-9]?%|100%", text, re.ASCII):
        raise typer.BadParameter(f"{text!r} is neither a number of agents nor a share such as 10%")
    return text


@app.command()
def kubernetes(
    cluster: ClusterName,
    *,
    file: PlanFile = DEFAULT_PLAN,
    image: Annotated[
        str | None, typer.Option(help="Image with netmgr [default: netmgr:<version>]")
    ] = None,
    max_unavailable: Annotated[
        str,
        typer.Option(
            metavar="COUNT",
            callback=_share,
            help="How many agents a rollout may replace at once, as a number or a share; nodes "
            "that are down count.",
        ),
    ] = "10%",
    to: To = None,
) -> None:
    """Render a cluster's manifests.

    They are the plan, its lock, and a DaemonSet without API credentials.
    """
    given = _with_cluster(file, cluster)
    documents = {
        "plan.yaml": file.read_text("utf-8"),
        "plan.lock.yaml": given.lock_path.read_text("utf-8"),
    }
    # kube-apiserver's --service-cluster-ip-range takes one range a family, joined by a comma.
    pairs = given.locked.clusters[cluster].services.pairs
    services = ",".join(str(service_cidr) for _, service_cidr in pairs)
    every = objects(documents, services, image or f"netmgr:{netmgr.__version__}", max_unavailable)
    write(to, yaml.dump_all(every, Dumper=yaml.CSafeDumper, sort_keys=False, width=1 << 20))


@app.command()
def terraform(*, file: PlanFile = DEFAULT_PLAN, to: To = None) -> None:
    """Render cloud resources for Terraform (azurerm 4)."""
    given = up_to_date(file)
    write(to, registry.rendered(given.plan, given.locked, given.limits))


@app.command()
def nic(name: NodeName, *, file: PlanFile = DEFAULT_PLAN, to: To = None) -> None:
    """Render one node's network interface with its blocks (ARM)."""
    given = up_to_date(file)
    write(to, registry.rendered_interface(given.plan, given.locked, _named(given, name)))
