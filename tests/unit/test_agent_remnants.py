"""What an agent left is removed on kernels that lack a part of it, and nothing is forgotten."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from netmgr.agent import host_pods, services
from netmgr.agent.components import Component, Remnants
from netmgr.agent.host_pods import HostPods
from netmgr.agent.services import NatServices
from netmgr.errors import KernelError


@pytest.fixture
def remnants(tmp_path: Path) -> Remnants:
    return Remnants(tmp_path, tmp_path, "netmgr", with_pods=False, keep_state=True)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*_: object) -> None:
        raise KernelError("delete table", number)

    monkeypatch.setattr(services, "_remove", refused)
    monkeypatch.setattr(host_pods, "_remove_rules", refused)


@pytest.mark.parametrize("kind", [NatServices, HostPods])
def test_a_kernel_without_nf_tables_holds_up_no_removal(
    kind: type[Component], remnants: Remnants, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.EOPNOTSUPP)
    assert list(kind.remove(remnants)) == []
    refuse(monkeypatch, errno.EPERM)
    with pytest.raises(KernelError):
        list(kind.remove(remnants))


def test_removal_forgets_that_there_were_services(
    remnants: Remnants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_remove", lambda: None)
    (remnants.state_dir / "services-backend").write_text("nftables\n")
    assert list(NatServices.remove(remnants)) == ["the table of Services was removed"]
    assert not (remnants.state_dir / "services-backend").exists()
