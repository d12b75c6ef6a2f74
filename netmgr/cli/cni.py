"""`netmgr cni`: install the CNI plugin on this node, uninstall it, build its launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from netmgr.cli.options import DEFAULT_RUN_DIR, DEFAULT_STATE_DIR, RunDir, StateDir
from netmgr.errors import Exit

app = typer.Typer(no_args_is_help=True, help="Install or remove the CNI plugin on this node.")

BinDir = Annotated[
    Path | None,
    typer.Option(help="Plugin directory of the container runtime [default: as it is configured]"),
]
HostRoot = Annotated[
    Path | None,
    typer.Option(help="The node's root directory, inside a container (needs CAP_SYS_CHROOT)."),
]
Name = Annotated[str, typer.Option(help="File name of the plugin: the conflist's `type`.")]


@app.command()
def install(  # noqa: PLR0913 (each is one option of the command)
    *,
    bin_dir: BinDir = None,
    conf_dir: Annotated[
        Path | None,
        typer.Option(
            help="Network directory of the container runtime [default: as it is configured]"
        ),
    ] = None,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    network: Annotated[
        str, typer.Option(help="Name of the network, as in the node's document.")
    ] = "netmgr",
    name: Name = "netmgr",
    cni_version: Annotated[
        str | None,
        typer.Option(
            help="The conflist's only version [default: 1.0.0, and 1.1.0 where it is known]"
        ),
    ] = None,
    launcher: Annotated[
        Path | None,
        typer.Option(help="Launcher to install [default: this machine's, built if necessary]"),
    ] = None,
    portmap: Annotated[
        bool | None,
        typer.Option(
            help="Chain `portmap` behind the plugin, for hostPort [default: if it is installed]"
        ),
    ] = None,
    bandwidth: Annotated[
        bool,
        typer.Option("--bandwidth", help="Chain `bandwidth`, for pods' bandwidth annotations."),
    ] = False,
    disable_gc: Annotated[
        bool,
        typer.Option(
            "--disable-gc", help="Forbid GC, where several runtimes share this configuration."
        ),
    ] = False,
    host_root: HostRoot = None,
    in_pod: Annotated[
        bool,
        typer.Option(
            "--in-pod",
            help="Install once the agent serves, have the next boot remove the network "
            "configuration, and stay until SIGTERM: as a container of the agent's pod.",
        ),
    ] = False,
    wait: Annotated[
        int | None,
        typer.Option(
            help="Seconds that a pod's start waits for an agent that is being replaced, 0 to 10 "
            "[default: 10]"
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that netmgr did not install.")
    ] = False,
) -> None:
    """Install or update launcher and network configuration."""
    from cni import build, runtimes
    from cni import in_pod as beside
    from cni.install import Installation, install, remarks

    # Read before the root changes: the launcher is in the image.
    program = (launcher or build.launcher()).read_bytes()
    # To come back: whoever stays in the node's root keeps what the node unmounts alive.
    own_root = os.open("/", os.O_PATH)
    _enter(host_root)
    # A network configuration makes the Node Ready, and pods come: not before an agent serves them.
    if in_pod:
        beside.await_agent(run_dir / "cni.sock")
    plugins, networks, why = runtimes.directories(bin_dir, conf_dir)
    if why:
        typer.echo(why)
    plan = Installation(
        plugins,
        networks,
        run_dir,
        state_dir,
        network,
        name,
        cni_version,
        portmap=portmap,
        bandwidth=bandwidth,
        disable_gc=disable_gc,
        wait=wait,
        boot_rules=beside.boot_rules() if in_pod else None,
    )
    changed = install(plan, program, force=force)
    for path in changed:
        typer.echo(f"installed {path}")
    if not changed:
        typer.echo(f"{plan.conflist}: up to date")
    for remark in remarks(plan):
        typer.echo(remark, err=True)
    if in_pod:
        # stay() replaces this program: what is still in the buffer would be lost.
        sys.stdout.flush()
        beside.stay(own_root)


@app.command()
def uninstall(
    *,
    bin_dir: BinDir = None,
    name: Name = "netmgr",
    host_root: HostRoot = None,
    if_installed: Annotated[
        bool, typer.Option("--if-installed", help="Succeed if nothing is installed.")
    ] = False,
) -> None:
    """Remove exactly what was installed.

    Afterwards the runtime cannot delete pods that still run. Exit 1 if a file was edited since its
    installation, and was left.
    """
    from cni.install import Manifest, uninstall, uninstalled_name
    from cni.runtimes import DEFAULT_BIN_DIR, detected

    _enter(host_root)
    # Upstream's default, too: the runtime's configuration may have changed since the installation.
    configured = [runtime.bin_dir for runtime in detected()]
    folders = [bin_dir] if bin_dir else [*configured, DEFAULT_BIN_DIR]
    installed = [folder for folder in folders if Manifest.read(folder, name).path.exists()]
    if if_installed and not installed:
        typer.echo(f"{', '.join(map(str, dict.fromkeys(folders)))}: no netmgr plugin is installed")
        return
    # Without any, the first folder is named in the error.
    removed, left = uninstall((installed or folders)[0], name)
    for path in removed:
        kept = uninstalled_name(path)
        note = f"; its extended text is kept in {kept}" if kept.exists() else ""
        typer.echo(f"removed {path}{note}")
    for path in left:
        typer.echo(f"left {path}: it was edited since netmgr installed it", err=True)
    if left:
        raise typer.Exit(Exit.FAILURE)


@app.command()
def build(
    *,
    arch: Annotated[
        str | None, typer.Option(help="amd64 or arm64 [default: this machine's]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write it [default: where install finds it]")
    ] = None,
) -> None:
    """Compile the launcher: the plugin's static program."""
    from cni import build

    if output is None:
        typer.echo(build.launcher(arch))
        return
    compiler = build.build(output, arch or build.host_architecture())
    typer.echo(f"{output} (compiled with {compiler})")


def _enter(host_root: Path | None) -> None:
    """Continue in the node's own file system: its runtime's configuration and plugins are there."""
    if host_root is not None:
        os.chroot(host_root)
        os.chdir("/")
