"""What people write: node.yaml, plan.yaml, lock, lists of networks; TOML of runtimes."""

from __future__ import annotations

from pathlib import Path

import yaml

from cni import runtimes
from netmgr.agent.health import link_managers
from netmgr.documents import loader, yaml_loader
from netmgr.documents.node import NodeDocument
from netmgr.documents.quantity import bit_rate
from netmgr.errors import ConfigError, NetmgrError, SetupError
from netmgr.plan import adopt, files
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument, digest_of
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Address, Prefix
from tests.fuzz.mutation import Shape
from tests.fuzz.target import file_of, folder, target

NODE = """
apiVersion netmgr.io/v1alpha1 kind Node node name addresses uplink max_pods ranges ranges_file
ranges_version range_source azure file role hub-router nat-host cni off backend nftables
iptables auto sites site prefixes nat services vip_range service_cidr source preserve
machines protect protect_except fragments_per_second internal accounting classes cluster_cidrs
host_pods node_rules exact corrected limits per-day per-month when-spent connections routes via
10.64.0.10 10.128.0.16/28 2001:db8:128:1::/112 169.254.169.254 0.0.0.0/0 ::/0 flowtable
reconcile_seconds
"""
PLAN = """
Plan hub clusters node_pools nodes max_pods surge subnets region cloud azure space prefixes pods
services pins exclude reason reservations limits growth per-month 10.0.0.0/8 fd00::/40 digest
version tombstone segments first layouts stride pod_base PlanLock cpu-0 gpu router nat
"""
TOML = """
plugins imports version cni bin_dir bin_dirs conf_dir io.containerd.grpc.v1.cri
io.containerd.cri.v1.runtime crio network plugin_dirs network_dir cni_default_network [[ ]] =
''' \"\"\" 1979-05-27T07:32:00Z inf nan 0x \\u0000 **
"""


def _text(data: bytes) -> str | None:
    """The text of a file; None for bytes that `load` refuses before they are parsed."""
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None


def _refused_or_written(data: bytes, name: str, kind: type[NodeDocument | PlanDocument]) -> None:
    text = _text(data)
    if text is None:
        return
    try:
        found = loader.parse(text, name, kind)
    except ConfigError as error:
        assert all(line.startswith(name) for line in error.message.splitlines())
        return
    again = loader.parse(files.to_yaml(found), name, kind)
    assert again == found, "written and read again it is another document"


@target(Shape.YAML, rounds=250, longest=16384, tokens=NODE)
def node_yaml(data: bytes) -> None:
    """A node.yaml is a `ConfigError`, every line of which names the file, or can be written."""
    _refused_or_written(data, "node.yaml", NodeDocument)


@target(Shape.YAML, rounds=250, longest=16384, tokens=PLAN)
def plan_yaml(data: bytes) -> None:
    """A plan.yaml is a `ConfigError`, every line of which names the file, or can be written."""
    _refused_or_written(data, "plan.yaml", PlanDocument)


@target(Shape.YAML, rounds=120, longest=32768, tokens=PLAN)
def plan_lock(data: bytes) -> None:
    """A lock is a `ConfigError`, or it is sound once it is written again."""
    with file_of(data, "plan.lock.yaml") as path:
        try:
            found = files.load_lock(path)
        except ConfigError as error:
            assert error.message.startswith(str(path))
            return
        assert found is not None
        files.write_lock(path, found, found)
        assert files.load_lock(path) == found


@target(Shape.YAML, rounds=150, longest=16384, tokens=PLAN)
def plan_allocation(data: bytes) -> None:
    """A plan that can be read is refused, or locked: the lock is read back, and nothing moves."""
    text = _text(data)
    if text is None:
        return
    try:
        plan = loader.parse(text, "plan.yaml", PlanDocument)
        limits = load_limits(plan.cloud)
        lock = make_lock(plan, None, limits)
    except NetmgrError:
        return
    again = loader.parse(files.to_yaml(files.sealed(lock)), "plan.lock.yaml", LockDocument)
    assert again == lock.model_copy(update={"digest": digest_of(lock)})
    assert make_lock(plan, lock, limits) == lock


@target(Shape.YAML, rounds=400, tokens=PLAN)
def existing_networks(data: bytes) -> None:
    """A list of what exists is a `ConfigError`, or prefixes, each with an owner."""
    text = _text(data)
    if text is None:
        return
    try:
        found = adopt.read_existing(text, "networks")
    except ConfigError:
        return
    for owner, prefixes in found.prefixes.items():
        assert isinstance(owner, str)
        assert all(Prefix.parse(str(prefix)) == prefix for prefix in prefixes)


@target(Shape.YAML, rounds=400, tokens=NODE)
def yaml_text(data: bytes) -> None:
    """The bounded loader raises YAML's errors alone, or reads what PyYAML's safe loader reads."""
    text = _text(data)
    if text is None:
        return
    try:
        found = yaml_loader.load(text)
    except yaml.YAMLError:
        return
    assert repr(found) == repr(yaml.load(text, Loader=yaml.CSafeLoader))


@target(Shape.TEXT, rounds=1200, tokens=TOML)
def containerd_toml(data: bytes) -> None:
    """A dump of containerd's configuration is a `SetupError`, or gives absolute directories."""
    try:
        found = runtimes.containerd_of(data.decode(errors="replace"), "dump")
    except SetupError:
        return
    assert found.bin_dir.is_absolute()
    assert found.conf_dir.is_absolute()


@target(Shape.TEXT, rounds=500, tokens=TOML)
def runtime_settings(data: bytes) -> None:
    """The files of runtimes are a `SetupError`, or settings of known keys, whatever they import."""
    with folder() as root:
        for path in (Path("/etc/containerd/config.toml"), runtimes.CRIO_CONFIG):
            file = root / path.relative_to("/")
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        try:
            found = runtimes.settings(root)
        except SetupError:
            return
        assert all(keys.keys() <= set(runtimes._KEYS) for keys in found.values())


@target(
    Shape.TEXT, rounds=1500, tokens="[Match] Name= Name * nm* !nm* eth? [a-z]* [b-a] [!x] = # ;"
)
def networkd_file(data: bytes) -> None:
    """A file of systemd-networkd takes the links of pods or does not, whatever it says."""
    with file_of(data, "10-any.network") as path:
        parser = link_managers._parsed(path)
        assert link_managers._takes_pods_links(parser, "name") in (True, False)


@target(
    Shape.TEXT,
    rounds=4000,
    longest=200,
    tokens="10.0.0.0/8 ::/0 2001:db8::1 ::ffff:1.2.3.4 %eth0 0x7f 1e9 64k 1Ti",
)
def literals(data: bytes) -> None:
    """An address, a prefix or a quantity is a `ValueError`, or shown it is read as the same."""
    text = data.decode(errors="surrogateescape")
    for parse in (Address.parse, Prefix.parse):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert parse(str(found)) == found
        assert str(found).isascii()
    try:
        rate = bit_rate(text)
    except ValueError:
        return
    assert bit_rate(rate) == rate
