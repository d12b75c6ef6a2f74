"""Where container runtimes look for plugins, as their own configurations say it."""

from pathlib import Path

import pytest

from cni import runtimes
from cni.runtimes import Runtime
from netmgr.errors import SetupError

OF_VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
"""
DEBIAN = OF_VERSION_2 + '  conf_dir = "/etc/cni/net.d"\n'
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


def written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_crio_takes_each_key_from_the_last_file_that_has_it(tmp_path):
    config = tmp_path / "crio.conf"
    written(config, '[crio.network]\nnetwork_dir = "/srv/net.d/"\nplugin_dirs = ["/a", "/b"]\n')
    first = written(
        tmp_path / "crio.conf.d/10-first.conf",
        '[crio.network]\nplugin_dirs = ["/usr/libexec/cni"]\n',
    )
    written(tmp_path / "crio.conf.d/20-second.conf", '[crio.runtime]\ndefault_runtime = "crun"\n')
    assert list(runtimes._crio(config)) == [Runtime("CRI-O", THERE, Path("/srv/net.d"), str(first))]


def test_crio_without_settings_of_its_own_has_the_defaults(tmp_path):
    config = written(tmp_path / "crio.conf", "[crio]\n")
    assert list(runtimes._crio(config)) == [Runtime("CRI-O", *DEFAULTS, str(config))]
    assert list(runtimes._crio(tmp_path / "absent.conf")) == []


def test_a_damaged_file_of_crio_is_named(tmp_path):
    (tmp_path / "crio.conf").write_text("[crio")
    with pytest.raises(SetupError, match=f"{tmp_path}/crio.conf: "):
        list(runtimes._crio(tmp_path / "crio.conf"))


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
