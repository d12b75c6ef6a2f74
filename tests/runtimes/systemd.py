"""systemd as the first process of a machine's own process namespace.

It knows the units that a test writes, and one more. Those of this machine would do to it what they
do at a boot: systemd-tmpfiles would empty /tmp, which a `Machine` shares with everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.runtimes.machine import Machine
from tests.waiting import eventually

UNITS = "/run/units"
TARGET = "multi-user.target"
TARGETS = ("sysinit.target", "basic.target", "shutdown.target", "network-online.target", TARGET)
"""What every service depends on, here without content."""
MODPROBE = "/lib/systemd/system/modprobe@.service"
"""Of systemd itself: the one unit that is this machine's. It loads a module."""

# Settings that belong to no namespace are this machine's: systemd may write only the network's.
# Its messages would go to the kernel's log, which all machines share: it has none.
START = f"""
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mount --bind /proc/sys /proc/sys
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,ro /proc/sys
exec env -i PATH=$PATH container=netmgr SYSTEMD_UNIT_PATH={UNITS} SYSTEMD_GENERATOR_PATH=/none \
    /lib/systemd/systemd --unit={TARGET} --log-target=null --show-status=no
"""


@dataclass
class Systemd:
    """The service manager of a machine."""

    machine: Machine

    def start(self) -> None:
        """Start it with nothing but the units that are written for it."""
        machine = self.machine
        for target in TARGETS:
            machine.write(f"{UNITS}/{target}", "[Unit]\n")
        machine.run("cp", MODPROBE, UNITS)
        unshare = ("unshare", "--mount", "--propagation=slave", "--pid", "--fork", "--mount-proc")
        machine.start("systemd", *unshare, "--kill-child", "sh", "-ec", START)
        eventually(self._answers, lambda: machine.log("systemd"))

    def control(self, *command: str, check: bool = True) -> str:
        """Run a program, systemctl for example, beside it; what it printed."""
        first = self.machine.run("pgrep", "--exact", "systemd").split()[0]
        beside = ("nsenter", f"--target={first}", "--mount", "--pid", "--cgroup")
        return self.machine.run(*beside, *command, check=check)

    def property(self, unit: str, name: str) -> str:
        return self.control("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def _answers(self) -> bool:
        if not self.machine.run("pgrep", "--exact", "systemd", check=False):
            return False
        return "running" in self.control("systemctl", "is-system-running", check=False)
