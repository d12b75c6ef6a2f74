"""Commands of pages, line by line as a newcomer copies them: those of the README's quick starts."""

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


def run(cluster: Cluster, heading: str, page: str = "README.md", folder: Path = ROOT) -> str:
    """What the commands below a heading print, run from a folder with kubectl's context.

    Raises:
        AssertionError: one of them failed.
    """
    section = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2]
    (commands,) = re.findall(r"(?ms)^```sh\n(.*?)^```$", section.partition("\n## ")[0])
    folders = (programs.folder(), Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    done = subprocess.run(
        ["nsenter", f"--net={cluster.namespace(network.CONTROL_PLANE)}", "bash", "-ex"],
        cwd=folder,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.plane.kubeconfig())},
        input=commands,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
