"""`ascent cluster plan`: on nodes by hand, on a cluster that stands, and what it says without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.cli import main

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
SERVERS = ("rollout.mode=server", "rollout.replicas=4", "rollout.tensor_parallel_size=2")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON, and what people read."""
    code = main(["cluster", "plan", str(CONFIG), "--json", *words])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {}, told.err


def test_nodes_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    code, told, text = plan(capsys, "--devices", "16", "--nodes", "4x8:npu,1x32:cpu", *SERVERS)
    assert code == 0
    assert told["schema"] == "ascent.cluster-plan/1"
    assert [each["first_rank"] for each in told["training"]] == [0, 8]
    assert [each["devices"] for each in told["replicas"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [each["node"] for each in told["spare"]] == ["10.0.0.4"]
    assert [each["node"] for each in told["judges"]][-1] == "10.0.0.5"
    assert "ranks 0-15 on npu 0-7" in text
    assert "its ranks start anew on 10.0.0.4" in text


def test_many_nodes_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, text = plan(capsys, "--devices", "800", "--nodes", "120x8:npu")
    assert code == 0
    assert "10.0.0.1 to 10.0.0.100 (100 nodes)" in text
    assert len(text.splitlines()) < 12


def test_what_follows_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--devices", "8", "--nodes", "4x2:npu", "cluster.min_nodes=1", "trainer.gradient_accumulation_steps=3")
    assert "goes on with 3, 2, 1 of 4 nodes" in plan(capsys, *words)[2]
    assert "waits 10 minutes" in plan(capsys, "--devices", "8", "--nodes", "4x2:npu")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--nodes 4x8:npu"),
        (("--devices", "9", "--nodes", "1x8:npu"), "What would fit: --devices 8"),
        (("--devices", "0", "--nodes", "1x8:npu"), "--devices 0"),
        (("--nodes", "1x8:npu", "cluster.ports=6379-6500"), "Ray's ports"),
        (("--nodes", "1x8:npu,"), "--nodes"),
        (("--nodes", "1x8:npu", "cluster.node=3"), "did you mean 'nodes'"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, told, text = plan(capsys, *words)
    assert code == 2
    assert not told
    assert said in text


def test_a_cluster_that_stands(ray_cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A head without cores, and three nodes of two devices at one address."""
    at = f"cluster.address={ray_cluster.address}"
    code, told, text = plan(capsys, "--devices", "4", at, "cluster.nodes=2", "rollout.mode=server")
    assert code == 0, text
    assert [each["devices"] for each in told["training"]] == [[0, 1], [0, 1]]
    assert len({each["id"] for each in (*told["training"], *told["replicas"])}) == 3
    code, _, text = plan(capsys, "--devices", "8", at)
    assert code == 2
    assert "there are 6 on 4 nodes" in text
    assert "--devices 6 (3 x 2)" in text
