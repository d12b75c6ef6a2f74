"""`netmgr plan init`: the first plan.yaml, from what is known of a network, each key explained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
import yaml

from netmgr.cli.options import DEFAULT_PLAN, PlanFile
from netmgr.cli.plan_common import refusals_described
from netmgr.documents import loader
from netmgr.documents.diagnostics import dotted
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.check.checks import refuse_errors
from netmgr.plan.clouds.cloud import Azure, Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix

# typer takes lists for defaults, and copies them. Hosts have 172.17.0.0/16 (docker0); AKS refuses
# 169.254.0.0/16, 172.30.0.0/16, 172.31.0.0/16 and 192.0.2.0/24 for pods and Services.
POOLS, SERVICES, CLUSTERS = ["10.0.0.0/8"], ["172.20.0.0/14", "172.24.0.0/14"], ["cluster-1"]

_LONGEST_SERVICES, _SHORTEST_SERVICES = 28, 16
"""Prefix lengths that a cluster's Service range may have, and has by default (IPv4)."""

_AZURE = f"""\
azure:  # for rendered resources
  location: {Azure().location}
  resource_group: {Azure().resource_group}
"""

_PLAN = """\
# What you want of the network. netmgr chooses the addresses and records them beside this file:
#
#   netmgr plan lock     choose prefixes, show them, ask, and write the lock
#   netmgr plan check    overlaps, headroom and limits
#   netmgr plan explain  whose an address is, and which key says so
#
# Keep this file and the lock in git. Allocations are recorded by name: entries can be inserted,
# removed and reordered, and nothing else moves. Keys that are commented out show examples.
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: {name}

cloud: {cloud}  # whose limits apply: azure, or none
{azure}
pools:
  nodes:  # where the hub, nodes and pods get their addresses; an IPv6 prefix may be added
{nodes}
  services:  # where clusters' Service ranges come from
{services}

# exclude:  # never allocated from
#   - prefix: 10.255.0.0/16
#     reason: office network

hub:  # where researchers enter; it reaches every cluster
  researchers: {researchers}  # addresses for their machines
  routers: {routers}

clusters:  # none reaches another
{clusters}"""

_CLUSTER = """\
  {name}:
    # grow_to: {cluster_growth}  # nodes it may get in all: their addresses stay free beside its own
    services:
      mode: unique  # or shared: all such clusters have the range that shared_services names
      length: {length}  # prefix length of the range
    node_pools:
      default:  # becomes part of the nodes' names
        nodes: {nodes}
        pods_per_node: {pods_per_node}
        # surge: 10%  # more nodes during an upgrade
        # grow_to: {pool_growth}  # subnets have room for so many nodes from the first day
"""


def init(  # noqa: PLR0913  one a command-line option
    *,
    file: PlanFile = DEFAULT_PLAN,
    name: Annotated[str, typer.Option(help="Name of the network.")] = "network",
    cloud: Annotated[Cloud, typer.Option(help="Whose limits apply.")] = Cloud.NONE,
    pool: Annotated[
        list[str],
        typer.Option(
            metavar="PREFIX", help="Where the hub, nodes and pods get their addresses; repeatable."
        ),
    ] = POOLS,
    services: Annotated[
        list[str],
        typer.Option(metavar="PREFIX", help="Where Service ranges come from; repeatable."),
    ] = SERVICES,
    cluster: Annotated[
        list[str], typer.Option(metavar="NAME", help="A cluster; repeatable.")
    ] = CLUSTERS,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each cluster.")] = 100,
    pods_per_node: Annotated[int, typer.Option(min=1, help="Pods that each node may have.")] = 31,
    researchers: Annotated[
        int, typer.Option(min=1, help="Addresses in the hub for researchers' machines.")
    ] = 250,
    routers: Annotated[int, typer.Option(min=1, help="Routers of the hub.")] = 2,
) -> None:
    """Write a first plan with a comment on each key.

    It is written only if `plan lock` and `plan check` accept it, and never over another file.
    """
    _refuse_to_replace(file, files.lock_path(file))
    pools, ranges = _prefixes("--pool", pool), _prefixes("--services", services)
    length = _services_length(ranges, len(cluster))
    numbers = {"length": length, "nodes": nodes, "pods_per_node": pods_per_node}
    growth = {"pool_growth": 2 * nodes, "cluster_growth": 4 * nodes}
    entries = (_CLUSTER.format(name=_scalar(entry), **numbers, **growth) for entry in cluster)
    written = _PLAN.format(
        name=_scalar(name),
        cloud=cloud.value,
        azure=_AZURE if cloud is Cloud.AZURE else "",
        nodes=_items(pools),
        services=_items(ranges),
        researchers=researchers,
        routers=routers,
        clusters="".join(entries),
    )
    _validate(written, file)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(written)
    except FileExistsError:  # since it was looked for
        _refuse_to_replace(file)
    typer.echo(f"Wrote {file}. Next: netmgr plan lock -f {file}")


def _refuse_to_replace(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise ConfigError(
                f"{file}: is there already, and is not replaced; name another plan with --file"
            )


def _prefixes(option: str, given: Iterable[str]) -> tuple[Prefix, ...]:
    try:
        return tuple(map(Prefix.parse, given))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _services_length(services: Iterable[Prefix], clusters: int) -> int:
    # As large as usual, unless as many clusters again would then not fit.
    size = sum(prefix.size for prefix in services if prefix.family is Family.V4)
    share = size // max(2 * clusters, 1)
    needed = Family.V4.width + 1 - max(share, 1).bit_length()
    return min(max(needed, _SHORTEST_SERVICES), _LONGEST_SERVICES)


def _items(prefixes: Iterable[Prefix]) -> str:
    return "\n".join(f"    - {prefix}" for prefix in prefixes)


def _scalar(value: str) -> str:
    # Unquoted, `on` would be true. A line break within would need the indentation of its place.
    dumped: str = yaml.safe_dump(value, width=1 << 20)
    # YAML ends a plain scalar that is a whole document by "...".
    return dumped.removesuffix("\n").removesuffix("\n...")


def _validate(written: str, file: Path) -> None:
    """Refuse a plan that could not be locked."""
    source = f"{file} (not written)"
    plan = loader.parse(written, source, PlanDocument)
    limits = files.limits_of(plan, file)
    with refusals_described(lambda fault: f"{source}: {dotted(fault.at.key)}: {fault}"):
        refuse_errors(plan, make_lock(plan, None, limits), limits)
