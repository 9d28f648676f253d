"""The lines that join machines: Ray takes every option, a shell every line, and each kind of node has its variables."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ascent.cli import main
from ascent.cluster import ports
from ascent.cluster.commands import Commands, commands, head_address
from ascent.cluster.nodes import by_hand
from ascent.errors import InputError


def made(*groups: str, ray: str = "2.60.0", head: str = "10.0.0.1") -> Commands:
    return commands(by_hand(list(groups)), head, ray=ray)


def starts(found: Commands) -> list[list[str]]:
    """The words of each `ray start`, as a shell gives them."""
    lines = [line.text for block in found.blocks for line in block.lines if line.text.startswith("ray start")]
    return [shlex.split(line.replace("\\\n", "")) for line in lines]


def exported(found: Commands, block: int) -> dict[str, str]:
    lines = [line.text for line in found.blocks[block].lines if line.text.startswith("export")]
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line)[1:])


def test_ray_takes_every_option() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    known = {name for option in scripts.start.params for name in option.opts}
    for words in starts(made("2x8:npu", "1x8:cuda", "1x4:cpu")):
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known
        scripts.start.make_context("ray start", words[2:])  # and its value: no number is a word, no JSON is broken


def test_a_shell_reads_all_of_it(tmp_path: Path) -> None:
    script = tmp_path / "lines"
    script.write_text(made("4x8:npu", "1x8:cuda").to_text())
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_each_kind_of_node_has_its_variables() -> None:
    found = made("1x8:npu", "1x4:cuda", "1x16:cpu")
    npu, cpu, cuda = exported(found, 0), exported(found, 1), exported(found, 2)
    assert npu["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert {"HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HCCL_HOST_SOCKET_PORT_RANGE"} <= set(npu)
    assert cuda["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"
    assert "NCCL_SOCKET_IFNAME" in cuda
    assert not [name for name in (*cuda, *cpu) if "HCCL" in name or "ASCEND" in name]
    for variables in (npu, cpu, cuda):
        assert variables["RAY_worker_niceness"] == "0"
        assert variables["RAY_memory_monitor_refresh_ms"] == "0"
    words = starts(found)
    assert '--resources={"NPU":8}' in words[0]
    assert "--num-gpus=4" in words[2]
    assert not [word for word in words[1] if word.startswith(("--resources", "--num-gpus"))]


def test_a_release_without_tokens_is_told_to_be_open() -> None:
    old, new = made("2x8:npu", ray="2.48.0"), made("2x8:npu", ray="2.60.0")
    assert "RAY_AUTH_MODE" not in old.to_text()
    assert any("no token" in note for note in old.notes)
    for block in new.blocks[:2]:
        assert block.lines[0].text == "export RAY_AUTH_MODE=token"
    assert not any("no token" in note for note in new.notes)


def test_nobody_listens_where_another_does() -> None:
    words = starts(made("2x8:npu"))[0]
    listened = [int(word.partition("=")[2]) for word in words if re.match(r"--[a-z-]*port=", word)]
    assert len(set(listened)) == len(listened)
    assert not {*range(29400, 29500)} & {*listened, *ports.WORKERS, *ports.HCCL_HOST}


def test_an_interface_is_one_word() -> None:
    text = commands(by_hand(["1x8:npu"]), "10.0.0.1", ray="2.60", interface="bond0.12").to_text()
    assert "INTERFACE=bond0.12\n" in text
    with pytest.raises(InputError, match="--interface"):
        commands(by_hand(["1x8:npu"]), "10.0.0.1", ray="2.60", interface="eth0; rm -rf /")


@pytest.mark.parametrize(
    ("given", "found"),
    [("10.0.0.1", ("10.0.0.1", 6379)), ("10.0.0.1:7000", ("10.0.0.1", 7000)), ("[fd00::1]:7000", ("fd00::1", 7000))],
)
def test_heads(given: str, found: tuple[str, int]) -> None:
    assert head_address(given) == found


@pytest.mark.parametrize(
    "given",
    ["localhost", "127.0.0.1", "0.0.0.0", "node1:6379", "10.0.0.1:80", "10.0.0.1:6380", "10.0.0.300", "", "::1"],
)
def test_heads_that_none_can_reach_are_refused(given: str) -> None:
    with pytest.raises(InputError, match="--head"):
        head_address(given)


@pytest.mark.parametrize(
    "given", ["1", "30000", "a-b", "30000-29000", "80-200", "6300-6400", "10000-12000", "70000-70100"]
)
def test_ports_that_cannot_be_are_refused(given: str) -> None:
    with pytest.raises(InputError, match=r"cluster\.ports"):
        ports.port_range(given)


def test_the_head_has_a_port_that_no_run_takes() -> None:
    with pytest.raises(InputError, match="one of the run's"):
        made("1x8:npu", head="10.0.0.1:29450")


def test_ports() -> None:
    assert list(ports.port_range("29400-29499")) == list(range(29400, 29500))


@pytest.mark.parametrize("release", ["2.47", "two", ""])
def test_releases_that_are_too_old_or_none_are_refused(release: str) -> None:
    with pytest.raises(InputError, match="--ray"):
        made("1x8:npu", ray=release)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "commands", "--head", "10.0.0.1", "--nodes", "2x8:npu", "--ray", "2.60", "--json"]) == 0
    assert '"schema": "ascent.cluster-commands/1"' in capsys.readouterr().out
    assert main(["cluster", "commands", "--head", "localhost", "--nodes", "2x8:npu", "--ray", "2.60"]) == 2
