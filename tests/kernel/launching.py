"""Executes the launcher as a container runtime does, and listens in the agent's place."""

import json
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from tempfile import TemporaryFile

from cni.install import Installation
from tests.unit import cni_shapes
from tests.waiting import PATIENCE

CONFIG = b'{"cniVersion":"1.0.0","name":"netmgr","type":"netmgr"}'
MIB = 1024 * 1024


class Agent:
    """Listens on a socket and answers every request with `behave(connection)`."""

    def __init__(self, path, behave):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.requests = []
        self._behave = behave
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._listener.accept()
            if not connection.recv(1, socket.MSG_PEEK):
                connection.close()
                return
            self._behave(self, connection)

    def close(self):
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._listener.getsockname())
        self._thread.join()
        self._listener.close()


def answering(reply):
    def behave(agent, connection):
        with connection:
            message = b""
            while part := connection.recv(1 << 16):
                message += part
            agent.requests.append(message)
            connection.sendall(reply)

    return behave


@contextmanager
def agents():
    """A function that starts an agent for a plugin; all of them end with the block."""
    started = []

    def start(plugin, behave):
        started.append(Agent(plugin.socket, behave))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.close()


def layout(directory, **changes):
    places = {"bin_dir": "bin", "conf_dir": "conf", "run_dir": "run", "state_dir": "state"}
    return Installation(**{key: directory / name for key, name in places.items()} | changes)


def variables(command, **more):
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/run/netns/pod",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web",
        "CNI_PATH": "/opt/cni/bin",
    } | more


def execute(plugin, command, stdin=CONFIG, **more):
    # Not by a pipe: a launcher waits only so long for what this process, held up, writes too late.
    with TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        return subprocess.run(
            [plugin.launcher],
            stdin=file,
            env=variables(command, **more),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )


def error_of(outcome):
    assert outcome.returncode == 1
    error = json.loads(outcome.stdout)
    cni_shapes.error(error)
    return error


def elf(program):
    """The machine of an ELF file (elf(5): 62 is x86-64, 183 AArch64), and whether it names a
    loader.
    """
    (machine,) = struct.unpack_from("<H", program.read_bytes(), 18)
    return machine, INTERP in {kind for kind, _ in segments(program)}


LOAD, INTERP = 1, 3
GNU_STACK, GNU_RELRO = 0x6474E551, 0x6474E552
EXECUTE, WRITE = 1, 2


def segments(program):
    """Kind and flags of each segment of an ELF file (elf(5), Elf64_Phdr)."""
    image = program.read_bytes()
    assert image[:6] == b"\x7fELF\x02\x01", "no 64-bit little-endian ELF"
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return [struct.unpack_from("<II", image, table + index * size) for index in range(count)]
