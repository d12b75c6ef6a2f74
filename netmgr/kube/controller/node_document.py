"""From a Node object to its agent's node.yaml (pure): a template, and what only the Node knows.

The template is a node.yaml without `node.name`, `node.addresses` and `ranges`. The name and the
InternalIPs are the Node's; the ranges are its podCIDRs, or all that the controller's annotation
names where podCIDRs, of which there is one a family, cannot say them.
"""

from __future__ import annotations

import ipaddress

from pydantic import TypeAdapter, ValidationError

from netmgr.errors import ConfigError
from netmgr.kube.client.api import Object
from netmgr.prefixes import Prefix

RANGES = "netmgr.io/ranges"
"""Annotation with all of a Node's ranges, comma-separated, where its podCIDRs cannot say them."""

RANGES_FILE = "/etc/netmgr-pod/ranges"
"""Where the agent finds what `netmgr controller` says of the Node's ranges later."""

FROM_NODE = ("name", "addresses")
_SWITCH = TypeAdapter(bool)
"""A switch as the document accepts it: quoted, too."""


def render(template: Object, node: Object) -> Object:
    """Fill in `node` and `ranges`.

    Raises:
        ConfigError: the template sets what comes from the Node, or the Node lacks something.
    """
    own = template.get("node") or {}
    if not isinstance(own, dict):
        raise ConfigError(
            "the template's node is not a mapping of keys: leave it out, or give it the keys that "
            "the Node lacks"
        )
    for key in FROM_NODE:
        if key in own:
            raise ConfigError(f"the template has node.{key}, which comes from the Node: remove it")
    if template.get("ranges"):
        raise ConfigError("the template has ranges, which come from the Node: remove them")
    name = node["metadata"]["name"]
    own = own | {"name": name, "addresses": _addresses(node)}
    if (pods := allocatable_pods(node)) is not None:
        own["max_pods"] = pods
    document = {"apiVersion": template.get("apiVersion"), "kind": template.get("kind"), "node": own}
    document |= {key: value for key, value in template.items() if key not in document}
    if _hands_out(template):
        document["ranges"] = [str(prefix) for prefix in ranges(node)]
        # By this the agent tells which is newer: the document, or the annotation of its pod.
        document["ranges_version"] = int(node["metadata"]["resourceVersion"])
        document.setdefault("ranges_file", RANGES_FILE)
    return document


def allocatable_pods(node: Object) -> int | None:
    """How many pods the kubelet takes (its `maxPods`); None if it has not said so."""
    text = str(node.get("status", {}).get("allocatable", {}).get("pods"))
    return int(text) if text.isascii() and text.isdigit() else None


def pod_cidr(text: str) -> Prefix:
    """A podCIDR in any form that the API server accepts: with host bits, or with leading zeros."""
    # A form that is refused here would end every controller, and any kubelet can write one.
    head, slash, length = text.partition("/")
    groups = head.split(":")
    # Decimal to the API server, also at the end of an IPv6 address.
    if "." in groups[-1]:
        groups[-1] = ".".join(str(int(octet)) for octet in groups[-1].split("."))
    # It takes any number of digits in a group: 000001 is 1. Python takes up to four.
    head = ":".join(group if "." in group else group.lstrip("0") or group[:1] for group in groups)
    return Prefix.parse(str(ipaddress.ip_network(f"{head}{slash}{length}", strict=False)))


def ranges(node: Object) -> tuple[Prefix, ...]:
    """A Node's ranges; ConfigError if it has none yet, or as of `all_ranges`."""
    name = node["metadata"]["name"]
    spec = node.get("spec", {})
    alone = [spec["podCIDR"]] if spec.get("podCIDR") else []
    cidrs = tuple(map(pod_cidr, spec.get("podCIDRs") or alone))
    if not cidrs:
        raise ConfigError(
            f"Node {name} has no podCIDRs yet: netmgr controller gives it some if it has a label "
            f"with its node pool, and says in its Events why not (kubectl describe node {name}). "
            "This will be tried again"
        )
    return all_ranges(name, cidrs, node["metadata"].get("annotations", {}).get(RANGES, ""))


def all_ranges(name: str, cidrs: tuple[Prefix, ...], text: str) -> tuple[Prefix, ...]:
    """The podCIDRs, or all that the annotation names; ConfigError if it contradicts them."""
    if not text:
        return cidrs
    try:
        named = tuple(Prefix.parse(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"Node {name}: annotation {RANGES}: {error}; remove it, and the controller repairs it"
        ) from None
    strangers = [str(cidr) for cidr in cidrs if cidr not in named]
    if strangers:
        raise ConfigError(
            f"Node {name}: annotation {RANGES} ({text}) does not name its podCIDR "
            f"{', '.join(strangers)}; remove it, and the controller repairs it"
        )
    return named


def internal_addresses(node: Object) -> tuple[str, ...]:
    """A Node's InternalIPs, as its kubelet or its cloud wrote them."""
    reported = node.get("status", {}).get("addresses") or ()
    return tuple(address["address"] for address in reported if address["type"] == "InternalIP")


def _addresses(node: Object) -> list[str]:
    addresses = internal_addresses(node)
    if not addresses:
        name = node["metadata"]["name"]
        raise ConfigError(
            f"Node {name} has no InternalIP yet: the kubelet says it, or with "
            "--cloud-provider=external the cloud's controller manager once it has seen the "
            f"machine (kubectl get node {name} -o wide). This will be tried again"
        )
    return list(addresses)


def _hands_out(template: Object) -> bool:
    """Whether pods of this node get addresses out of `ranges`."""
    try:
        wires_pods = _SWITCH.validate_python(template.get("cni", True))
    except ValidationError:
        return False  # whoever reads the document says what is wrong with it
    return (
        wires_pods
        and template.get("role", "node") == "node"
        and template.get("range_source", "file") == "file"
    )
