"""Installing the plugin: what lies where, whose it is, and that removal takes exactly that."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cni import build
from cni import install as installer
from cni.install import Installation, install, uninstall
from cni.runtime_config import CAPABILITIES
from netmgr import programs
from netmgr.errors import SetupError, StateError

SAMPLES = Path(__file__).parents[2] / "configs" / "cni"


LAUNCHER = b"\x7fELF " + build.MARK


@pytest.fixture
def launcher(tmp_path):
    path = tmp_path / "built"
    path.write_bytes(LAUNCHER + b"one")
    return path


@pytest.fixture
def plan(tmp_path):
    return Installation(tmp_path / "bin", tmp_path / "conf", tmp_path / "run", tmp_path / "state")


@pytest.fixture
def installed(plan, launcher):
    install(plan, launcher)
    return plan


def tree(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def sample(name):
    return (SAMPLES / name).read_text()


def document(plan):
    return json.loads(plan.conflist.read_text())


def test_every_file_is_in_its_place(plan, launcher):
    everything = [plan.launcher, plan.paths_file, plan.record, plan.conflist]
    assert install(plan, launcher) == everything
    assert plan.conflist.read_text() == sample("10-netmgr.conflist")
    assert plan.launcher.read_bytes() == launcher.read_bytes()
    assert plan.launcher.stat().st_mode & 0o777 == 0o755
    assert plan.paths_file.read_text() == f"{plan.run_dir}/cni.sock\n{plan.state_dir}/spool\n"
    assert plan.spool.stat().st_mode & 0o777 == 0o700
    assert tree(plan.bin_dir) == {"netmgr", "netmgr.path", "netmgr.installed"}


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.conflist")), ids=lambda path: path.name)
def test_samples_are_conflists_of_ours(path):
    content = json.loads(path.read_text())
    assert content["plugins"][0]["type"] == content["name"] == "netmgr"
    assert content["cniVersion"] == installer.DEFAULT_VERSION


def test_one_version_can_be_asked_for(plan):
    asked = replace(plan, network="pods", name="nm2", cni_version="0.4.0")
    plugin = {"type": "nm2", "capabilities": dict.fromkeys(CAPABILITIES, True)}
    expected = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
    assert installer.conflist(asked) == expected
    assert asked.conflist.name == "10-nm2.conflist"


def test_a_wait_can_be_asked_for_within_bounds(plan):
    assert installer.conflist(replace(plan, wait=5))["plugins"][0]["wait"] == 5
    for outside in (-1, 11):
        with pytest.raises(SetupError, match=f"wait {outside}: must be 0 to 10 seconds"):
            replace(plan, wait=outside)


def test_runtimes_that_share_a_configuration_can_be_kept_from_collecting_each_others_pods(plan):
    assert "disableGC" not in installer.conflist(plan)
    shared = installer.conflist(replace(plan, disable_gc=True))
    assert shared["disableGC"] is True
    assert shared | {"disableGC": None} == installer.conflist(plan) | {"disableGC": None}


def test_only_what_changed_is_replaced(installed, launcher):
    before = {path: path.stat().st_ino for path in installed.bin_dir.iterdir()}
    assert install(installed, launcher) == []
    assert {path: path.stat().st_ino for path in installed.bin_dir.iterdir()} == before
    launcher.write_bytes(LAUNCHER + b"two")
    assert install(installed, launcher) == [installed.launcher]
    assert installed.launcher.read_bytes().endswith(b"two")


def test_the_configuration_appears_last(plan, launcher, monkeypatch):
    """A runtime that sees the network must find a plugin that works."""
    order = []
    write = installer.durable.write

    def watched(path, content, mode):
        write(path, content, mode)
        order.append((path.name, plan.launcher.exists() and plan.paths_file.exists()))

    monkeypatch.setattr(installer.durable, "write", watched)
    install(plan, launcher)
    assert order[0][0] == "netmgr.installed"
    assert dict(order)["10-netmgr.conflist"]


@pytest.mark.parametrize("victim", ["launcher", "paths_file", "conflist"])
def test_somebody_elses_file_stops_everything(plan, launcher, victim):
    path = getattr(plan, victim)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("somebody else's")
    before = tree(plan.bin_dir.parent)
    with pytest.raises(SetupError, match=f"{path}: is not netmgr's"):
        install(plan, launcher)
    assert tree(plan.bin_dir.parent) == before
    assert path.read_text() == "somebody else's"
    install(plan, launcher, force=True)
    assert path.read_text(errors="replace") != "somebody else's"


@pytest.mark.parametrize("target", ["built", "nowhere"])
def test_a_symbolic_link_is_somebody_elses_wherever_it_leads(plan, launcher, tmp_path, target):
    plan.bin_dir.mkdir()
    plan.launcher.symlink_to(tmp_path / target)
    with pytest.raises(SetupError, match="is not netmgr's"):
        install(plan, launcher)


def extended(plan):
    """The conflist with a plugin of the administrator's at its end."""
    content = document(plan)
    content["plugins"].append({"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}})
    return json.dumps(content)


def test_an_edited_configuration_is_not_overwritten(installed, launcher):
    of_another_network = extended(installed).replace('"name": "netmgr"', '"name": "theirs"')
    for text in ("{}", of_another_network):
        installed.conflist.write_text(text)
        with pytest.raises(SetupError, match="was edited since"):
            install(installed, launcher)


def test_an_installation_whose_manifest_is_lost_is_taken_over(installed, launcher):
    (installed.bin_dir / "netmgr.installed").unlink()
    launcher.write_bytes(LAUNCHER + b"two")
    install(installed, launcher)
    assert uninstall(installed.bin_dir)[1] == []
    assert not installed.conflist.exists()


def test_uninstall_leaves_the_machine_as_it_was(plan, launcher, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "20-other.conflist").write_text("{}")
    before = tree(tmp_path)
    install(plan, launcher)
    removed = [plan.conflist, plan.record, plan.paths_file, plan.launcher]
    assert uninstall(plan.bin_dir) == (removed, [])
    assert tree(tmp_path) == before
    # But for what others put into our directories.
    install(plan, launcher)
    (plan.spool / "0123456789abcdef.del").write_text("kept")
    (plan.bin_dir / "other").write_text("another plugin")
    uninstall(plan.bin_dir)
    assert (plan.spool / "0123456789abcdef.del").exists()
    assert tree(plan.bin_dir) == {"other"}


def test_uninstall_leaves_edited_files_and_says_so(installed):
    installed.conflist.write_text("edited")
    removed = [installed.record, installed.paths_file, installed.launcher]
    assert uninstall(installed.bin_dir) == (removed, [installed.conflist])
    assert installed.conflist.read_text() == "edited"
    installed.conflist.unlink()
    assert uninstall(installed.bin_dir) == ([], [])
    assert not installed.bin_dir.exists()


def test_uninstalling_nothing_says_so(tmp_path):
    with pytest.raises(SetupError, match="installed nothing there"):
        uninstall(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": {}}', '{"files": 1, "directories": []}']
)
def test_a_damaged_manifest_is_told(installed, text):
    (installed.bin_dir / "netmgr.installed").write_text(text)
    with pytest.raises(StateError, match=r"netmgr\.installed"):
        uninstall(installed.bin_dir)


def test_a_manifest_of_another_version_is_told_and_kept(installed, launcher):
    manifest = installed.bin_dir / "netmgr.installed"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    before = tree(installed.bin_dir), manifest.read_bytes()
    for act in (lambda: uninstall(installed.bin_dir), lambda: install(installed, launcher)):
        with pytest.raises(StateError, match=r"another version of netmgr wrote it \(version 2\)"):
            act()
    assert (tree(installed.bin_dir), manifest.read_bytes()) == before


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("writes", range(7))
def test_an_interrupted_update_can_be_finished_or_removed(installed, launcher, monkeypatch, writes):
    launcher.write_bytes(LAUNCHER + b"two")
    moved = replace(installed, run_dir=installed.run_dir / "x", network="pods")
    write, done = installer.durable.write, []

    def failing(path, content, mode):
        if len(done) == writes:
            raise Interrupted
        done.append(path)
        write(path, content, mode)

    monkeypatch.setattr(installer.durable, "write", failing)
    with pytest.raises(Interrupted) if writes < 6 else nullcontext():
        install(moved, launcher)
    monkeypatch.setattr(installer.durable, "write", write)
    if writes % 2:
        install(moved, launcher)
        assert document(moved)["name"] == "pods"
    assert uninstall(installed.bin_dir)[1] == []
    assert not installed.conflist.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../x"}, "name"),
        ({"network": "a b"}, "network"),
        ({"bin_dir": Path("bin")}, "bin_dir"),
        ({"state_dir": Path("/a\nb")}, "state_dir"),
        ({"run_dir": Path("/" + "x" * 120)}, "too long"),
        ({"cni_version": "2.0.0"}, "CNI version"),
    ],
)
def test_a_contradictory_plan_is_refused(change, message):
    with pytest.raises(SetupError, match=message):
        Installation(**{"bin_dir": Path("/b"), "conf_dir": Path("/c")} | change)


def test_a_directory_that_cannot_be_made_is_named(plan, launcher, tmp_path):
    (tmp_path / "conf").write_text("a file")
    with pytest.raises(SetupError, match="conf"):
        install(plan, launcher)


def reference_plugin(plan, name, *versions):
    """As `VERSION` sees a plugin of the project containernetworking."""
    path = plan.bin_dir / name
    answer = json.dumps({"cniVersion": versions[-1], "supportedVersions": versions})
    path.write_text(f"#!/bin/sh\n[ \"$CNI_COMMAND\" = VERSION ] && echo '{answer}'\n")
    path.chmod(0o755)


def with_portmap(plan):
    plan.bin_dir.mkdir(exist_ok=True)
    reference_plugin(plan, "portmap", "0.4.0", "1.0.0", "1.1.0")


@pytest.mark.programs
def test_portmap_is_chained_where_the_runtime_has_it_even_later(installed, launcher):
    assert any("hostPort does not work" in remark for remark in installer.remarks(installed))
    with_portmap(installed)
    assert install(installed, launcher) == [installed.conflist]
    assert installed.conflist.read_text() == sample("10-netmgr-portmap.conflist")
    assert installer.remarks(installed) == []


@pytest.mark.programs
def test_portmap_can_be_refused_and_insisted_on(plan, launcher):
    with pytest.raises(SetupError, match=r"portmap: there is no such plugin; it comes with"):
        replace(plan, portmap=True)
    with_portmap(plan)
    without = replace(plan, portmap=False)
    install(without, launcher)
    assert without.conflist.read_text() == sample("10-netmgr.conflist")
    assert installer.remarks(without) == []


@pytest.mark.programs
@pytest.mark.parametrize("bandwidth", [("1.0.0",), ("0.4.0",)])
def test_a_version_is_offered_only_if_the_whole_chain_has_it(plan, launcher, bandwidth):
    """containerd 2 asks every plugin for STATUS where 1.1.0 is offered."""
    with_portmap(plan)
    install(plan, launcher)
    assert document(plan)["cniVersions"] == ["1.0.0", "1.1.0"]
    reference_plugin(plan, "bandwidth", *bandwidth)
    install(replace(plan, bandwidth=True), launcher)
    assert document(plan)["cniVersions"] == ["1.0.0"]


@pytest.mark.programs
@pytest.mark.parametrize("content", ["", "#!/bin/sh\necho no JSON\n", "#!/bin/sh\nexit 1\n"])
def test_a_plugin_that_does_not_say_its_versions_has_no_newer_one(plan, launcher, content):
    with_portmap(plan)
    (plan.bin_dir / "portmap").write_text(content)
    install(plan, launcher)
    assert document(plan)["cniVersions"] == ["1.0.0"]


@pytest.mark.programs
def test_bandwidth_is_chained_behind_portmap_when_it_is_asked_for(plan, launcher):
    with pytest.raises(SetupError, match=r"bandwidth: there is no such plugin; it comes with"):
        install(replace(plan, bandwidth=True), launcher)
    with_portmap(plan)
    reference_plugin(plan, "bandwidth", "1.0.0", "1.1.0")
    install(replace(plan, bandwidth=True), launcher)
    own, *others = document(plan)["plugins"]
    assert others == [
        {"type": name, "capabilities": {capability: True}}
        for name, capability in (("portmap", "portMappings"), ("bandwidth", "bandwidth"))
    ]
    assert "bandwidth" not in own["capabilities"]
    install(plan, launcher)
    own, *others = document(plan)["plugins"]
    assert [other["type"] for other in others] == ["portmap"]
    assert own["capabilities"]["bandwidth"]


def test_the_last_installation_stays_until_the_runtime_can_have_been_restarted(
    installed, launcher, tmp_path
):
    moved = replace(installed, bin_dir=tmp_path / "moved")
    launcher.write_bytes(LAUNCHER + b"two")
    install(moved, launcher)
    assert (installed.launcher.exists(), moved.launcher.exists()) == (True, True)
    install(moved, launcher)
    assert not installed.launcher.exists()
    assert not (installed.bin_dir / "netmgr.installed").exists()
    assert uninstall(moved.bin_dir)[1] == []
    assert not installed.conflist.exists()


def test_an_extended_configuration_survives_the_next_installation(installed, launcher):
    text = extended(installed)
    installed.conflist.write_text(text)
    launcher.write_bytes(LAUNCHER + b"two")
    assert install(installed, launcher) == [installed.launcher]
    assert install(installed, launcher) == []
    assert installed.conflist.read_text() == text
    assert installer.remarks(installed) == [
        f"{installed.conflist}: was extended since netmgr installed it, and is kept as it is"
    ]


def test_uninstall_takes_an_extended_configuration_out_of_the_runtimes_sight(installed):
    text = extended(installed)
    installed.conflist.write_text(text)
    removed = [installed.conflist, installed.record, installed.paths_file, installed.launcher]
    assert uninstall(installed.bin_dir) == (removed, [])
    assert installer.uninstalled_name(installed.conflist).read_text() == text
    assert tree(installed.conf_dir) == {"10-netmgr.conflist.uninstalled"}


@pytest.fixture
def in_pod(plan, tmp_path):
    return replace(plan, conf_dir=tmp_path / "a %conf", boot_rules=tmp_path / "tmpfiles.d")


def boot(plan):
    """What systemd does to the files of a node before it starts a runtime."""
    rules = sorted(plan.boot_rules.iterdir())
    if rules:
        programs.run(("systemd-tmpfiles", "--remove", *rules))
        assert plan.conflist.exists()
        done = programs.run(("systemd-tmpfiles", "--remove", "--boot", *rules))
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.programs
def test_a_boot_removes_the_configuration_that_a_pod_installed_and_nothing_else(in_pod, launcher):
    everything = [in_pod.boot_rule, in_pod.launcher, in_pod.paths_file, in_pod.record]
    assert install(in_pod, launcher) == [*everything, in_pod.conflist]
    text = in_pod.conflist.read_text()
    boot(in_pod)
    assert not in_pod.conflist.exists()
    assert all(path.exists() for path in everything)
    assert install(in_pod, launcher) == [in_pod.conflist]
    assert in_pod.conflist.read_text() == text
    assert uninstall(in_pod.bin_dir) == ([in_pod.conflist, *reversed(everything)], [])
    assert not in_pod.boot_rules.exists()


@pytest.mark.programs
def test_an_extended_configuration_survives_boots_from_the_next_installation_on(in_pod, launcher):
    install(in_pod, launcher)
    text = extended(in_pod)
    in_pod.conflist.write_text(text)
    install(in_pod, launcher)
    boot(in_pod)
    assert in_pod.conflist.read_text() == text


@pytest.mark.programs
@pytest.mark.parametrize("other", ["05-cilium.conflist", "05-old.conf", "00.json"])
def test_a_configuration_that_sorts_before_ours_is_named(plan, launcher, other):
    with_portmap(plan)
    install(plan, launcher)
    (plan.conf_dir / "99-bridge.conflist").write_text("{}")
    (plan.conf_dir / "00-notes.txt").write_text("not read by runtimes")
    assert installer.remarks(plan) == []
    (plan.conf_dir / other).write_text("{}")
    (said,) = installer.remarks(plan)
    assert said.startswith(f"the runtime takes {plan.conf_dir / other}, not netmgr's")
