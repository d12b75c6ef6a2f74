"""Every form of a podCIDR that a real API server takes from a kubelet is one that netmgr reads."""

from __future__ import annotations

import ipaddress

import pytest

from netmgr.kube.node_document import pod_cidr
from tests.fuzz.of_cluster import go_takes
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import node

pytestmark = pytest.mark.kubernetes

FORMS = (
    "10.0.0.0/24",
    "010.000.1.0/24",
    "10.0.1.7/24",
    "10.0.0.0/024",
    "fd00::/64",
    "0000001::/64",
    "fd00::0001:0/112",
    "::ffff:10.0.0.0/120",
    "::ffff:010.0.0.0/120",
    "fd00::10.0.0.1/120",
    "fe80::%1/64",
    "10.0.0/24",
    "0x0a.0.0.0/24",
    "10.0.0.0/33",
    "::10000/112",
    "1:2:3:4:5:6:7::/64",
)


@pytest.mark.usefixtures("no_nodes")
def test_what_an_api_server_takes_is_read(control_plane: ControlPlane) -> None:
    taken = []
    for number, form in enumerate(FORMS):
        body = node(f"n{number}", podCIDR=form, podCIDRs=[form])
        status, _ = control_plane.answer("POST", "/api/v1/nodes", body)
        if status < 300:
            taken.append(form)
    assert taken == [form for form in FORMS if go_takes(form)]
    for form in taken:
        assert ipaddress.ip_network(str(pod_cidr(form)))
