"""Container images made on the spot from this machine's static busybox and a probe: nothing is
downloaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = (Path("/usr/bin/busybox"), Path("/bin/busybox"))
APPLETS = ("ip", "nc", "sh", "sleep")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """One content-addressed piece of an OCI image (image-spec, descriptor.md)."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.content).hexdigest()

    def descriptor(self) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content)}


def build_probe(folder: Path) -> bytes:
    """The program that sends datagrams from inside a pod (probe.c), linked so that it needs no
    library.
    """
    source, target = Path(__file__).with_name("probe.c"), folder / "probe"
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Werror", "-o", target, source], check=True)
    return target.read_bytes()


def root_files(probe: bytes) -> dict[str, bytes | str]:
    """Paths of a root file system: bytes for a program, text for the target of a link."""
    busybox = next(path for path in BUSYBOX if path.exists()).read_bytes()
    return {
        "bin/busybox": busybox,
        "bin/probe": probe,
        **{f"bin/{applet}": "busybox" for applet in APPLETS},
    }


def oci_archive(
    name: str, command: list[str], files: Mapping[str, bytes | str], entrypoint: Sequence[str] = ()
) -> bytes:
    """A tar of an OCI image layout with one image, called `name`, that runs `command`.

    `files` is its root, in the form of `root_files`; pods replace `command`, as the arguments of
    `entrypoint`.
    """
    layer = Blob(LAYER, _tar(files))
    config = _json(
        CONFIG,
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Cmd": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        },
    )
    manifest = _json(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        },
    )
    index = {
        "manifests": [{**manifest.descriptor(), "annotations": {"io.containerd.image.name": name}}]
    }
    return _tar(
        {
            "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
            "index.json": json.dumps({"schemaVersion": 2, **index}).encode(),
            **{
                f"blobs/{blob.digest.replace(':', '/')}": blob.content
                for blob in (layer, config, manifest)
            },
        }
    )


def unpack_root(folder: Path, probe: bytes) -> Path:
    """Put the same files into `folder`, for a runtime that starts from a directory."""
    for path, content in root_files(probe).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.symlink_to(content)
        else:
            target.write_bytes(content)
            target.chmod(0o755)
    for mount_point in ("dev", "etc", "proc", "run", "sys", "tmp"):
        (folder / mount_point).mkdir()
    return folder


def _json(media_type: str, content: object) -> Blob:
    return Blob(media_type, json.dumps(content, sort_keys=True).encode())


def _tar(files: Mapping[str, bytes | str]) -> bytes:
    """A tar of `files` that is the same for the same content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o755
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
