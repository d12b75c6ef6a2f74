"""What an agent left is removed on kernels that lack a part of it, and nothing is forgotten."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from netmgr.agent import host_pods
from netmgr.agent.components import Remnants
from netmgr.agent.host_pods import HostPods
from netmgr.errors import KernelError


@pytest.fixture
def remnants(tmp_path: Path) -> Remnants:
    return Remnants(tmp_path, tmp_path, "netmgr", with_pods=False, keep_state=True)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*_: object) -> None:
        raise KernelError("delete table", number)

    monkeypatch.setattr(host_pods, "_remove_rules", refused)


def test_a_kernel_without_nf_tables_holds_up_no_removal(
    remnants: Remnants, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.EOPNOTSUPP)
    assert list(HostPods.remove(remnants)) == []
    refuse(monkeypatch, errno.EPERM)
    with pytest.raises(KernelError):
        list(HostPods.remove(remnants))
