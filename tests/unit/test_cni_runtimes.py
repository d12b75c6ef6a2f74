"""Where container runtimes look for plugins, as their own configurations say it."""

from pathlib import Path

import pytest

from cni import runtimes
from cni.runtimes import Runtime
from netmgr.errors import SetupError

DEBIAN = """
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/etc/cni/net.d"
"""
VERSION_3 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dir = ''
  bin_dirs = ['/usr/libexec/cni', '/opt/cni/bin']
  conf_dir = '/srv/net.d'
"""
CONTAINERD_2_0 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dir = '/usr/lib/cni'
"""
HERE, THERE = Path("/usr/lib/cni"), Path("/usr/libexec/cni")
NETWORKS = Path("/etc/cni/net.d")


@pytest.mark.parametrize(
    ("dump", "bin_dir", "conf_dir"),
    [
        pytest.param(DEBIAN, HERE, NETWORKS, id="1.6 and 1.7"),
        pytest.param(CONTAINERD_2_0, HERE, NETWORKS, id="2.0"),
        pytest.param(VERSION_3, THERE, Path("/srv/net.d"), id="2.1 and newer"),
        pytest.param("version = 3\n", runtimes.DEFAULT_BIN_DIR, NETWORKS, id="nothing said"),
        pytest.param(
            'disabled_plugins = ["cri"]\n', runtimes.DEFAULT_BIN_DIR, NETWORKS, id="docker's"
        ),
    ],
)
def test_containerd_says_where_it_looks(dump, bin_dir, conf_dir):
    assert runtimes.containerd_of(dump, "dump") == Runtime("containerd", bin_dir, conf_dir, "dump")


@pytest.mark.parametrize("dump", ["[", f"version = {'9' * 5000}"])
def test_a_dump_that_is_no_toml_is_an_error_with_its_source(dump):
    with pytest.raises(SetupError, match=r"^containerd config dump: .*--bin-dir"):
        runtimes.containerd_of(dump, "containerd config dump")


def test_crio_takes_each_key_from_the_last_file_that_has_it(tmp_path):
    (tmp_path / "crio.conf.d").mkdir()
    (tmp_path / "crio.conf").write_text(
        '[crio.network]\nnetwork_dir = "/srv/net.d/"\nplugin_dirs = ["/a", "/b"]\n'
    )
    (tmp_path / "crio.conf.d" / "10-first.conf").write_text(
        '[crio.network]\nplugin_dirs = ["/usr/libexec/cni"]\n'
    )
    (tmp_path / "crio.conf.d" / "20-second.conf").write_text(
        '[crio.runtime]\ndefault_runtime = "crun"\n'
    )
    (found,) = runtimes._crio(tmp_path / "crio.conf")
    source = str(tmp_path / "crio.conf.d" / "10-first.conf")
    assert found == Runtime("CRI-O", THERE, Path("/srv/net.d"), source)


def test_crio_without_settings_of_its_own_has_the_defaults(tmp_path):
    (tmp_path / "crio.conf").write_text("[crio]\n")
    (found,) = runtimes._crio(tmp_path / "crio.conf")
    assert (found.bin_dir, found.conf_dir) == (runtimes.DEFAULT_BIN_DIR, runtimes.DEFAULT_CONF_DIR)
    assert list(runtimes._crio(tmp_path / "absent.conf")) == []


def test_a_damaged_file_of_crio_is_named(tmp_path):
    (tmp_path / "crio.conf").write_text("[crio")
    with pytest.raises(SetupError, match=f"{tmp_path}/crio.conf: "):
        list(runtimes._crio(tmp_path / "crio.conf"))


def test_directories_that_are_given_win():
    there = Runtime("containerd", HERE, NETWORKS, "dump")
    chosen = runtimes.chosen([there], Path("/x"), None)
    assert chosen == (
        Path("/x"),
        NETWORKS,
        "containerd looks in /usr/lib/cni and /etc/cni/net.d (dump)",
    )
    assert runtimes.directories(Path("/x"), Path("/y")) == (Path("/x"), Path("/y"), "")


def test_without_a_runtime_the_defaults_are_said():
    chosen = runtimes.chosen([], None, None)
    assert chosen == (
        runtimes.DEFAULT_BIN_DIR,
        runtimes.DEFAULT_CONF_DIR,
        "no container runtime's configuration is here",
    )


def test_runtimes_that_disagree_need_a_word():
    both = [
        Runtime("containerd", HERE, NETWORKS, "dump"),
        Runtime("CRI-O", THERE, NETWORKS, "crio.conf"),
    ]
    with pytest.raises(
        SetupError, match=r"containerd looks in /usr/lib/cni .*, CRI-O looks in .*--bin-dir"
    ):
        runtimes.chosen(both, None, None)
    assert runtimes.chosen(both, HERE, None)[:2] == (HERE, NETWORKS)
