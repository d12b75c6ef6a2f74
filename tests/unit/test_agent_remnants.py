"""What an agent left is removed on kernels that lack a part of it, and nothing is forgotten."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from netmgr.agent import host_pods
from netmgr.agent.components import Remnants
from netmgr.agent.host_pods import HostPods
from netmgr.errors import KernelError


def test_a_kernel_without_nf_tables_holds_up_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remnants = Remnants(tmp_path, tmp_path, "netmgr", with_pods=False, keep_state=True)
    faults = iter([KernelError("delete table", errno.EOPNOTSUPP), KernelError("x", errno.EPERM)])

    def refuse(*_: object) -> None:
        raise next(faults)

    monkeypatch.setattr(host_pods, "_remove_rules", refuse)
    assert list(HostPods.remove(remnants)) == []
    with pytest.raises(KernelError):
        list(HostPods.remove(remnants))
