"""The README's quick starts, line by line as a newcomer copies them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e import network, programs
from tests.e2e.cluster import Cluster

ROOT = Path(__file__).parents[2]
SECONDS = 300


def run(cluster: Cluster, heading: str) -> str:
    """What the commands below a heading print, run from the clone's folder with kubectl's context.

    Raises:
        AssertionError: one of them failed.
    """
    section = (ROOT / "README.md").read_text().partition(f"\n## {heading}\n")[2]
    (commands,) = re.findall(r"(?ms)^```sh\n(.*?)^```$", section.partition("\n## ")[0])
    folders = (programs.folder(), Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    done = subprocess.run(
        ["nsenter", f"--net={cluster.namespace(network.CONTROL_PLANE)}", "bash", "-ex"],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.plane.kubeconfig())},
        input=commands,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
