"""Where container runtimes look for plugins, as their own configurations say it; and an agent that
notices when they cannot find its plugin, although everything else works.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cni import build, installed, runtimes
from cni.install import Installation, install
from cni.installed import Record
from cni.runtimes import Runtime
from netmgr.errors import SetupError, StateError

CONTAINERD = """
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
"""
MULTUS = {"type": "multus", "clusterNetwork": "/host/etc/cni/net.d/10-netmgr.conflist"}


@pytest.fixture
def plan(tmp_path):
    plan = Installation(
        tmp_path / "opt/bin", tmp_path / "etc/net.d", tmp_path / "run", tmp_path / "state"
    )
    install(plan, b"\x7fELF " + build.MARK)
    return plan


def found(plan):
    """The problem that the check of this installation raises; empty if there is none."""
    try:
        installed.check(plan.state_dir)
    except StateError as error:
        return str(error)
    return ""


def test_an_installation_that_runtimes_find_is_healthy(plan):
    assert found(plan) == ""


def test_an_agent_without_an_installation_checks_nothing(tmp_path):
    installed.check(tmp_path)


def test_files_that_are_missing_or_cannot_be_used_are_named(plan):
    plan.launcher.chmod(0o644)
    assert f"{plan.launcher} is not executable" in found(plan)
    plan.launcher.unlink()
    assert f"{plan.launcher} is missing; install again" in found(plan)
    plan.conflist.unlink()
    assert f"{plan.conflist}: No such file" in found(plan)


NETMGR, OTHER = '{"type": "netmgr"}', '{"type": "netmgr2"}'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        *((text, "is not a network configuration") for text in ("", "[]", '{"plugins": 1}')),
        ('{"plugins": [{}]}', "is not a network configuration"),
        (f'{{"plugins": [{NETMGR}, {{"type": 5}}]}}', "is not a network configuration"),
        (f'{{"name": "netmgr", "plugins": [{OTHER}]}}', "does not run netmgr any more"),
    ],
)
def test_a_damaged_network_configuration_or_anothers_is_named(plan, text, fault):
    plan.conflist.write_text(text)
    assert f"{plan.conflist} {fault}" in found(plan)


def chain(plan, plugin):
    document = json.loads(plan.conflist.read_text())
    document["plugins"].append({"type": plugin})
    plan.conflist.write_text(json.dumps(document))


def test_a_chained_plugin_that_is_missing_is_named(plan):
    chain(plan, "tuning")
    assert f"runs tuning, but {plan.bin_dir} has no such plugin" in found(plan)
    (plan.bin_dir / "tuning").touch()
    assert found(plan) == ""


def test_a_configuration_that_sorts_before_ours_is_named(plan):
    (plan.conf_dir / "05-a-directory.conf").mkdir()
    assert found(plan) == ""
    first = plan.conf_dir / "05-cilium.conflist"
    first.write_text('{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}')
    assert f"the runtime takes {first}, not netmgr's" in found(plan)
    first.unlink()
    first.symlink_to("/nowhere")
    assert f"the runtime takes {first}, not netmgr's" in found(plan)
    # A meta-plugin that delegates to ours may sort first.
    (plan.conf_dir / "00-multus.conf").write_text(json.dumps(MULTUS))
    assert found(plan) == ""


def test_configurations_that_disappear_during_the_check_are_found_missing_by_the_next(
    plan, monkeypatch
):
    monkeypatch.setattr(installed, "networks", lambda _: [])
    assert found(plan) == ""


@pytest.mark.parametrize(
    ("network", "is_found"), [("netmgr", True), ("cilium", False), ("", False)]
)
def test_crio_takes_the_network_that_its_configuration_names(plan, tmp_path, network, is_found):
    (plan.conf_dir / "05-other.conflist").write_text('{"name": "other", "plugins": []}')
    root = host_of(plan, tmp_path)
    write(root, "/etc/crio/crio.conf", '[crio.network]\ncni_default_network = "older"\n')
    drop_in = "/etc/crio/crio.conf.d/10-network.conf"
    write(root, drop_in, f'[crio.network]\ncni_default_network = "{network}"\n')
    record = record_of(plan, **runtimes.settings(root))
    problems = "; ".join(installed.problems(record, root))
    assert (problems == "") is is_found
    if network == "cilium":
        assert problems == f"{drop_in}: cni_default_network is cilium; set it to netmgr"
    if not network:
        assert "it sorts before 10-netmgr.conflist" in problems


def host_of(plan, tmp_path):
    """The root at which a container sees the node and the directories of its installation."""
    root = tmp_path / "host"
    for path in (plan.bin_dir, plan.conf_dir):
        seen = root / path.relative_to("/")
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.symlink_to(path)
    return root


def record_of(plan, **settings):
    return Record(plan.bin_dir, plan.conf_dir, "netmgr", "netmgr", settings)


def test_a_directory_that_the_container_does_not_see_is_named(plan, tmp_path):
    inside = tmp_path / "host"
    (inside / "etc").mkdir(parents=True)
    record = replace(record_of(plan), bin_dir=Path("/opt/cni/bin"), conf_dir=Path("/etc/net.d"))
    (problem,) = installed.problems(record, inside)
    unseen = "/opt/cni/bin is not visible in this container; mount it, read-only, at"
    assert problem == f"{unseen} {inside}/opt/cni/bin"


def test_a_runtime_that_was_told_to_look_elsewhere_is_noticed(plan, tmp_path):
    """Files of an agent in a container are below the root that it sees the node at."""
    inside = host_of(plan, tmp_path)
    config = inside / "etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONTAINERD)
    record = record_of(plan, **runtimes.settings(inside))
    ours = CONTAINERD.replace("/usr/lib/cni", str(plan.bin_dir))
    for text in (CONTAINERD, CONTAINERD + '[debug]\nlevel = "debug"\n', ours):
        config.write_text(text)
        assert [*installed.problems(record, inside)] == []
    # Without the key or the file, containerd looks in its default directory.
    for text in (CONTAINERD.replace("/usr/lib/cni", "/opt/cni/bin"), "version = 2\n", ""):
        config.write_text(text)
        if not text:
            config.unlink()
        (problem,) = installed.problems(record, inside)
        assert problem.startswith("/etc/containerd/config.toml has changed what it says about CNI")


@pytest.mark.parametrize(
    "damage",
    [
        *({"bin_dir": "opt"}, {"conf_dir": None}, {"name": 5}, {"network": ["netmgr"]}),
        *({"settings": []}, {"settings": {"/etc/containerd/config.toml": 5}}),
        # What no file can be called.
        *({"name": ""}, {"name": "../netmgr"}, {"network": "a\0"}, {"conf_dir": "/etc/\0"}),
        {"bin_dir": "/opt/\ud800"},
    ],
)
def test_a_record_of_other_types_or_of_impossible_names_is_named(plan, damage):
    record = json.loads(plan.record.read_text())
    plan.record.write_text(json.dumps(record | damage))
    assert f"{plan.record}: cannot be understood" in found(plan)


@pytest.mark.parametrize("text", ["{}", "null"])
def test_a_record_that_somebody_damaged_is_named(plan, text):
    plan.record.write_text(text)
    assert f"{plan.record}: cannot be understood" in found(plan)
    assert "install again" in found(plan)
    install(plan, b"\x7fELF " + build.MARK)
    assert found(plan) == ""


def write(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_imported_files_are_read_too(tmp_path):
    assert runtimes.settings(tmp_path) == {}
    write(tmp_path, "/etc/containerd/config.toml", 'imports = ["conf.d/*.toml", "/srv/one.toml"]\n')
    write(tmp_path, "/etc/containerd/conf.d/b.toml", CONTAINERD)
    # A file that imports the one that imported it ends the search, not the program.
    write(tmp_path, "/srv/one.toml", 'imports = ["/etc/containerd/config.toml"]\n' + CONTAINERD)
    write(tmp_path, "/etc/crio/crio.conf.d/10-a.conf", '[crio.network]\nplugin_dirs = ["/a"]\n')
    assert runtimes.settings(tmp_path) == {
        "/etc/containerd/conf.d/b.toml": {"bin_dir": "/usr/lib/cni"},
        "/srv/one.toml": {"bin_dir": "/usr/lib/cni"},
        "/etc/crio/crio.conf.d/10-a.conf": {"plugin_dirs": ["/a"]},
    }


@pytest.mark.parametrize(
    "pattern", ["/", ".", "", "a**b.toml", "[", "../../x", "/etc/\\u0000*/*.toml", "//x/*"]
)
def test_an_odd_pattern_of_imports_leads_to_no_file(tmp_path, pattern):
    write(tmp_path, "/etc/containerd/config.toml", f'imports = ["{pattern}"]\n' + CONTAINERD)
    assert list(runtimes.settings(tmp_path)) == ["/etc/containerd/config.toml"]


def test_two_asterisks_of_a_pattern_are_one_as_for_containerd(tmp_path):
    write(tmp_path, "/etc/containerd/config.toml", 'imports = ["conf.d/**/*.toml"]\n')
    for path in ("conf.d/a.toml", "conf.d/1/b.toml", "conf.d/1/.c.toml", "conf.d/1/2/d.toml"):
        write(tmp_path, f"/etc/containerd/{path}", CONTAINERD)
    expected = [f"/etc/containerd/conf.d/1/{name}" for name in (".c.toml", "b.toml")]
    assert sorted(runtimes.settings(tmp_path)) == expected


@pytest.mark.parametrize("text", ["[", "a=" + "[" * 5000])
def test_a_damaged_file_is_an_error_with_its_name(tmp_path, text):
    write(tmp_path, "/etc/containerd/config.toml", text)
    with pytest.raises(SetupError, match=r"etc/containerd/config\.toml"):
        runtimes.settings(tmp_path)


@pytest.mark.parametrize("directory", ["//srv/cni", f"/srv/{'a' * 300}"])
def test_a_record_of_an_odd_directory_is_a_missing_launcher(plan, directory):
    plan.record.write_text(json.dumps(json.loads(plan.record.read_text()) | {"bin_dir": directory}))
    assert f"{directory}/netmgr is missing" in found(plan)


@pytest.mark.parametrize("plugin", ["a" * 300, "//x", "a\0b", "\ud800"])
def test_a_plugin_that_no_file_can_be_called_is_a_missing_one(plan, plugin):
    chain(plan, plugin)
    assert "has no such plugin" in found(plan)


DEBIAN = CONTAINERD + 'conf_dir = "/etc/cni/net.d"\n'
CONTAINERD_2_0 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dir = '/usr/lib/cni'
"""
VERSION_3 = (
    CONTAINERD_2_0.replace("/usr/lib/cni", "")
    + """
bin_dirs = ['/usr/libexec/cni', '/opt/cni/bin']
conf_dir = '/srv/net.d'
"""
)
HERE, THERE = Path("/usr/lib/cni"), Path("/usr/libexec/cni")
NETWORKS = Path("/etc/cni/net.d")
DEFAULTS = (runtimes.DEFAULT_BIN_DIR, runtimes.DEFAULT_CONF_DIR)


@pytest.mark.parametrize(
    ("dump", "directories"),
    [
        pytest.param(DEBIAN, (HERE, NETWORKS), id="1.6 and 1.7"),
        pytest.param(CONTAINERD_2_0, (HERE, NETWORKS), id="2.0"),
        pytest.param(VERSION_3, (THERE, Path("/srv/net.d")), id="2.1 and newer"),
        pytest.param("version = 3\n", DEFAULTS, id="nothing said"),
        pytest.param('disabled_plugins = ["cri"]\n', DEFAULTS, id="docker's"),
    ],
)
def test_containerd_says_where_it_looks(dump, directories):
    assert runtimes.containerd_of(dump, "dump") == Runtime("containerd", *directories, "dump")


@pytest.mark.parametrize("dump", ["[", f"version = {'9' * 5000}"])
def test_a_dump_that_is_no_toml_is_an_error_with_its_source(dump):
    with pytest.raises(SetupError, match=r"^containerd config dump: .*--bin-dir"):
        runtimes.containerd_of(dump, "containerd config dump")


def test_crio_takes_each_key_from_the_last_file_that_has_it(tmp_path):
    config = tmp_path / "crio.conf"
    assert list(runtimes._crio(config)) == []
    config.write_text("[crio]\n")
    assert list(runtimes._crio(config)) == [Runtime("CRI-O", *DEFAULTS, str(config))]
    config.write_text('[crio.network]\nnetwork_dir = "/srv/net.d/"\nplugin_dirs = ["/a", "/b"]\n')
    first = "/crio.conf.d/10-first.conf"
    write(tmp_path, first, '[crio.network]\nplugin_dirs = ["/usr/libexec/cni"]\n')
    write(tmp_path, "/crio.conf.d/20-second.conf", '[crio.runtime]\ndefault_runtime = "crun"\n')
    expected = Runtime("CRI-O", THERE, Path("/srv/net.d"), f"{tmp_path}{first}")
    assert list(runtimes._crio(config)) == [expected]


def test_directories_that_are_given_win():
    there = Runtime("containerd", HERE, NETWORKS, "dump")
    why = "containerd looks in /usr/lib/cni and /etc/cni/net.d (dump)"
    assert runtimes.chosen([there], Path("/x"), None) == (Path("/x"), NETWORKS, why)
    assert runtimes.directories(Path("/x"), Path("/y")) == (Path("/x"), Path("/y"), "")


def test_without_a_runtime_the_defaults_are_said():
    why = "no container runtime's configuration is here"
    assert runtimes.chosen([], None, None) == (*DEFAULTS, why)


def test_runtimes_that_disagree_need_a_word():
    both = [Runtime("containerd", HERE, NETWORKS, "dump"), Runtime("CRI-O", THERE, NETWORKS, "x")]
    why = r"containerd looks in /usr/lib/cni .*, CRI-O looks in .*--bin-dir"
    with pytest.raises(SetupError, match=why):
        runtimes.chosen(both, None, None)
    assert runtimes.chosen(both, HERE, None)[:2] == (HERE, NETWORKS)
