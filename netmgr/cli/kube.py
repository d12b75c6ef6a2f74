"""`netmgr kube`: what runs in pods and asks the API server, so that the agent does not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.controller import SERVICE_ACCOUNT, Account, Kubeconfig, connect, ends, start_logging
from netmgr.errors import ApiAway, ApiError, ConfigError

if TYPE_CHECKING:
    from netmgr.kube.api import Api, Object

app = typer.Typer(no_args_is_help=True)

REASON, COMPONENT = "NodeDocumentRefused", "netmgr-node"
NOT_FOUND, CONFLICT = 404, 409


@app.command()
def node(
    *,
    node_name: Annotated[str, typer.Option(envvar="NODE_NAME", metavar="NAME", help="This machine's Node object.")],
    template: Annotated[
        Path, typer.Option(metavar="FILE", help="node.yaml without the name, the addresses and the ranges.")
    ] = Path("/etc/netmgr-template/node.yaml"),
    to: Annotated[Path, typer.Option(metavar="FILE", help="The document to write.")] = Path("/etc/netmgr/node.yaml"),
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to go on asking an API server that is away.")
    ] = 60,
    kubeconfig: Kubeconfig = None,
    service_account: Account = SERVICE_ACCOUNT,
) -> None:
    """Write this node's document from its Node object: the one request that a node makes.

    Meant for an init container. On any error nothing is written, the Node gets an Event, and the kubelet tries again.
    """
    api = connect(kubeconfig, service_account)
    found = _own_node(api, node_name, wait)
    try:
        text = _document(template, found, to)
    except ConfigError as error:
        _complain(api, found, error.message)
        raise
    from netmgr.durable import write_text

    write_text(to, text)
    typer.echo(f"{to}: written for Node {node_name}")


def _own_node(api: Api, name: str, wait: float) -> Object:
    """The Node, by one request that is answered."""
    import time

    from netmgr.kube.backoff import Backoff

    backoff, deadline = Backoff(first=1), time.monotonic() + wait
    while True:
        try:
            return api.get(f"/api/v1/nodes/{name}")
        except ApiAway:
            pause = backoff.next()
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            raise ConfigError(
                f"there is no Node {name!r}: the kubelet has not registered it, or under another name; "
                "NODE_NAME must be the pod's spec.nodeName"
            ) from None


def _document(template: Path, found: Object, to: Path) -> str:
    import yaml

    from netmgr import documents, yaml_loader
    from netmgr.config import NodeDocument
    from netmgr.kube.node_document import render
    from netmgr.plan_files import read_text, to_yaml

    try:
        given = yaml_loader.load(read_text(template))
    except yaml.YAMLError as error:
        raise ConfigError(f"{template}: is not YAML: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{template}: must be a mapping of keys, a node.yaml without what the Node says")
    head = f"# From {template} and the Node {found['metadata']['name']}, by `netmgr kube node`.\n"
    text = head + to_yaml(render(given, found))
    documents.parse(text, f"{to} (not written)", NodeDocument)
    return text


def _complain(api: Api, found: Object, message: str) -> None:
    """An Event on the Node; without the right to write one the log alone has it."""
    from netmgr.kube.events import PATH, event, event_name

    about = (found["metadata"]["name"], found["metadata"]["uid"])
    try:
        api.create(PATH, event(event_name(*about, message), about, REASON, message, (COMPONENT, about[0])))
    except ApiError as error:
        if error.status != CONFLICT:  # the Event of the last attempt is still there
            typer.echo(f"netmgr: no Event on Node {about[0]}: {error.message}", err=True)


@app.command()
def services(
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to keep; nobody else may write into it.")],
    kubeconfig: Kubeconfig = None,
    service_account: Account = SERVICE_ACCOUNT,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Follow Services and EndpointSlices, and keep a file of each Service for a NAT host's agent.

    A folder that is not there yet appears when all are known, with every file in it.
    """
    from netmgr.kube.reflector import Follower, Reflector
    from netmgr.kube.service_files import ServiceFiles

    start_logging(log_level)
    api, files, ended = connect(kubeconfig, service_account), ServiceFiles(to), ends()
    stop = threading.Event()
    followed: dict[str, Follower] = {
        "/api/v1/services": files.services,
        "/apis/discovery.k8s.io/v1/endpointslices": files.slices,
    }
    reflectors = [Reflector(api, path, follower, stop, ended) for path, follower in followed.items()]
    for reflector in reflectors:
        reflector.start()
    ended.wait()
    stop.set()
    for reflector in reflectors:
        if reflector.failure is not None:
            raise reflector.failure
