"""The documented recording rule gives names to what came by other nodes' ports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from exporter import catalog
from netmgr import programs

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"
POD = 'cluster="a",namespace="data",pod="server",uid="1"'
ENDED = 'cluster="a",namespace="data",pod="former",uid="2"'
STRANGER = 'cluster="b",namespace="data",pod="other",uid="3"'
RULE = "cluster_namespace_pod_traffic:netmgr_remote_pod_traffic_bytes:rate5m"


def remote(cluster: str, instance: str, address: str, rate: int) -> dict[str, str]:
    labels = f'cluster="{cluster}",instance="{instance}",address="{address}",traffic="internet-in"'
    return {
        "series": f"{catalog.REMOTE_POD_BYTES.name}{{{labels}}}",
        "values": f"0+{60 * rate}x20",
    }


def pod(labels: str, phase: str) -> list[dict[str, str]]:
    info = f'kube_pod_info{{{labels},host_network="false",pod_ip="10.9.0.1"}}'
    running = f'kube_pod_status_phase{{{labels},phase="Running"}}'
    return [
        {"series": info, "values": "1x20"},
        {"series": running, "values": f"{int(phase == 'Running')}x20"},
    ]


@pytest.mark.programs
def test_a_pods_bytes_of_all_entry_nodes_are_its_own_also_after_another_pod_had_its_address(
    tmp_path: Path,
) -> None:
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "rules.yml").write_text(block)
    test = {
        "interval": "1m",
        "input_series": [
            remote("a", "node-1", "10.9.0.1", 5),
            remote("a", "node-2", "10.9.0.1", 7),
            remote("a", "node-2", "10.9.0.2", 100),
            *pod(POD, "Running"),
            *pod(ENDED, "Succeeded"),
            *pod(STRANGER, "Running"),
        ],
        "promql_expr_test": [
            {
                "expr": RULE,
                "eval_time": "15m",
                "exp_samples": [
                    {
                        "labels": f'{RULE}{{cluster="a",namespace="data",pod="server",'
                        'traffic="internet-in"}',
                        "value": 12,
                    }
                ],
            }
        ],
    }
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    outcome = programs.run(
        [programs.locate("promtool", "prometheus"), "test", "rules", "test.yml"], cwd=tmp_path
    )
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr).decode()
