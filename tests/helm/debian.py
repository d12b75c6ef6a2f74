"""A bare Debian in a folder, made by debootstrap, in which packages are tried."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ENTER = """
set -e
# The root of a mount namespace in which `ip netns` works has to be a mount point.
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount -t sysfs sysfs "$0/sys"
mount --bind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/run"
# In a chroot no user namespace can be made, and whoever enters the mount namespace leaves it.
cd "$0"
pivot_root . .
umount --lazy .
cd /
exec "$@"
"""
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
}


def _debootstrap(*arguments: str | Path) -> None:
    """Run debootstrap with this machine's package mirror."""
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI)")
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", *arguments, listed.split()[0]],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr}"


def extract(package: Path, root: Path) -> None:
    """Unpack a Debian package's files."""
    # dpkg-deb alone would replace the links of a merged /usr by folders.
    script = 'dpkg-deb --fsys-tarfile "$0" | tar -x -C "$1" --keep-directory-symlink'
    subprocess.run(["sh", "-c", script, package, root], check=True)


@dataclass(frozen=True)
class Debian:
    """A release of Debian below `root`. What runs in it ends with the call that started it."""

    root: Path

    @classmethod
    def make(cls, suite: str, root: Path) -> Debian:
        """Install the smallest system from this machine's package mirror."""
        _debootstrap("--include=ca-certificates", suite, root)
        # A company's mirror may have a certificate of its own.
        certificates = root / "etc" / "ssl" / "certs"
        shutil.rmtree(certificates)
        shutil.copytree("/etc/ssl/certs", certificates)
        if (settings := Path("/etc/pip.conf")).exists():
            shutil.copy(settings, root / "etc")
        policy = root / "usr" / "sbin" / "policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")  # new packages start nothing
        policy.chmod(0o755)
        made = cls(root)
        made.run("apt-get", "-qq", "update", network=True)
        return made

    @classmethod
    def unpack(cls, suite: str, architecture: str, root: Path, *packages: str) -> Debian:
        """Unpack the smallest system of another architecture, and packages, without their scripts.

        Nothing of it runs here. Packages that are a kernel are left as files in the root's parent.
        """
        _debootstrap(
            *(f"--arch={architecture}", "--foreign", f"--include={','.join(packages)}"),
            *(suite, root),
        )
        (root / "proc").unlink()  # a link, while the second stage has not run
        (root / "proc").mkdir()
        for package in (root / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            if package.name.startswith("linux-image-"):
                shutil.move(package, root.parent)
            else:
                extract(package, root)
        for name in ("passwd", "group"):
            shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
        return cls(root)

    def run(
        self, *command: str | Path, network: bool = False, check: bool = True, stdin: str = ""
    ) -> str:
        """What a program prints in it, in new namespaces; only with `network` in this machine's."""
        own = ["--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        done = subprocess.run(
            ["unshare", *own, "sh", "-c", ENTER, self.root, *command],
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            env=ENVIRONMENT,
            timeout=600,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def install(self, *packages: str | Path) -> str:
        """Install packages of the mirror or files, with what they depend on."""
        options = ("-qq", "--yes", "--no-install-recommends")
        return self.run("apt-get", "install", *options, *packages, network=True)
