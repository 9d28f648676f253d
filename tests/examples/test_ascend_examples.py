"""The Ascend examples: read by the real reader, fit for a real machine's report, and small enough for a 64 GB card."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from ascent import config
from ascent.config import RunConfig
from ascent.environment import matrix, preflight, reports
from ascent.environment.inventory import Environment
from ascent.memory import Plan, plan
from ascent.memory.cards import GIB
from ascent.memory.from_config import settings_of
from ascent.memory.phases import ENGINE_TERMS

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "examples" / "ascend"
SCRIPT = FOLDER / "container.sh"
# file -> training processes, as its command line says
DEVICES = {
    "qwen2.5-7b-lora-1-card.yaml": 1,
    "qwen2.5-7b-8-cards.yaml": 8,
    "qwen2.5-7b-server-4-and-4.yaml": 4,
    "qwen2.5-32b-lora-tp4.yaml": 4,
}
SERVERS = ("qwen2.5-7b-server-4-and-4.yaml", "qwen2.5-32b-lora-tp4.yaml")
TABLE_TERMS = (
    *("weights", "gradients", "optimizer", "gathered", "activations", "logits"),
    *("transfer", "communication", "reserve"),
)
needs_trl = pytest.mark.torch


def parsed(name: str) -> RunConfig:
    """The example by its schema alone: no package of the training is needed."""
    return RunConfig.model_validate(yaml.safe_load((FOLDER / name).read_text("utf-8")))


def machine() -> Environment:
    """Eight 910B3 on the current row, as vLLM-Ascend's own collect_env prints such a machine."""
    return reports.parse(Path(__file__).with_name("ascend_8_cards.txt").read_text("utf-8"))


def planned(name: str) -> Plan:
    """What `ascent plan` says of the example on the card that it is for."""
    settings, _ = settings_of(parsed(name), DEVICES[name], "npu")
    return plan(parsed(name).model.path, "910B3", settings)


def test_every_example_is_here() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == set(DEVICES)


@needs_trl
@pytest.mark.parametrize("name", [name for name in DEVICES if name not in SERVERS])
def test_colocated_example_is_accepted_without_a_remark(name: str) -> None:
    settings, notes = config.load(FOLDER / name)
    assert notes == []
    assert settings.rollout.mode == "colocate"


@needs_trl
@pytest.mark.parametrize("name", SERVERS)
def test_server_example_is_accepted_without_a_remark(name: str) -> None:
    settings, notes = config.load(FOLDER / name)
    assert notes == []
    assert settings.rollout.mode == "server"


@pytest.mark.parametrize("name", DEVICES)
def test_command_line_in_the_file_names_the_file_and_the_processes(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    command = next(line for line in text.splitlines() if line.startswith("#   ascent train"))
    assert f"examples/ascend/{name}" in command
    assert (f"--devices {DEVICES[name]}" in command) == (DEVICES[name] > 1)


@pytest.mark.parametrize("name", DEVICES)
def test_machine_passes_preflight_for_the_example(name: str) -> None:
    rollout = parsed(name).rollout
    checked = preflight(
        machine(),
        weight_updates=True,
        sleep_mode=False,
        graph_mode=not rollout.enforce_eager,
        server_mode=rollout.mode == "server",
        trainer_devices=tuple(range(DEVICES[name])),
        server_devices=parsed(name).server_devices(DEVICES[name]),
        need_free_bytes=planned(name).peak.total,
    )
    assert checked.errors == ()
    assert len(checked.environment.npu.devices) == 8


def test_preflight_refuses_what_no_card_has() -> None:
    checked = preflight(machine(), need_free_bytes=62 * GIB)
    assert [finding.rule for finding in checked.errors] == ["A208"]


@pytest.mark.parametrize("name", SERVERS)
def test_servers_have_as_many_devices_as_their_replicas_take(name: str) -> None:
    rollout = parsed(name).rollout
    parallel = rollout.tensor_parallel_size
    assert len(rollout.server_devices or ()) == rollout.replicas * parallel
    model = planned(name).model
    assert model.heads % parallel == model.kv_heads % parallel == 0


@pytest.mark.parametrize("name", DEVICES)
def test_memory_fits_a_card(name: str) -> None:
    made = planned(name)
    assert made.verdict == "fits"
    sequences = made.engine.kv_tokens // made.settings.batch.length
    assert sequences >= (parsed(name).rollout.max_num_seqs or 0)


@needs_trl
def test_plan_knows_what_is_sent_at_once() -> None:
    from ascent.memory.engine_memory import CHUNK
    from ascent.rollout.weights.transports.collective import DEFAULT_CHUNK_BYTES

    assert CHUNK == DEFAULT_CHUNK_BYTES


@pytest.mark.parametrize("name", DEVICES)
def test_batch_is_whole_groups(name: str) -> None:
    trainer = parsed(name).trainer
    batch = trainer["per_device_train_batch_size"] * trainer["gradient_accumulation_steps"] * DEVICES[name]
    assert batch % trainer["num_generations"] == 0
    length = parsed(name).rollout.max_model_len
    prompt = parsed(name).tasks.max_prompt_tokens
    assert prompt is not None
    assert length == prompt + trainer["max_completion_length"]


def test_table_of_memory_is_what_the_plan_says() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    rows = {cells[0].strip("* "): cells[1:] for cells in _table(text, "| | 7B LoRA, 1 card |")}
    for column, name in enumerate(DEVICES):
        wanted = table_column(name)
        assert {label: rows[label][column].strip("* ") for label in wanted} == wanted, name


def table_column(name: str) -> dict[str, str]:
    """GiB of the largest phase of a training card, and of a card that only samples."""
    made = planned(name)
    phase, servers = made.trainer_peak, made.server_phases
    terms = {term: phase.terms.get(term, 0) for term in TABLE_TERMS}
    shared = sum(size for term, size in phase.terms.items() if term in ENGINE_TERMS)
    largest = max((each.total for each in servers), default=0)
    numbers = {
        **terms,
        "engine on the same card": shared,
        "training card": phase.total,
        "engine on its own card": largest,
        "of the engine: its weights": made.engine.weights,
    }
    return {label: f"{size / GIB:.1f}" if size else "" for label, size in numbers.items()} | {
        "largest phase": phase.name,
        "completions whose KV cache fits at once": str(made.engine.kv_tokens // made.settings.batch.length),
        "completions sampled at once": str(parsed(name).rollout.max_num_seqs),
    }


def _table(text: str, head: str) -> list[list[str]]:
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(head))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


# ---- the container ------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a host with eight A2 cards and a driver."""
    for name in [*(f"davinci{n}" for n in range(8)), "davinci_manager", "devmm_svm", "hisi_hdc"]:
        _touch(tmp_path / "dev" / name)
    _touch(tmp_path / "usr/local/Ascend/driver/lib64/driver/libascend_hal.so")
    _touch(tmp_path / "usr/local/Ascend/driver/version.info")
    _touch(tmp_path / "usr/local/dcmi/libdcmi.so")
    _touch(tmp_path / "etc/ascend_install.info")
    smi = tmp_path / "usr/local/bin/npu-smi"
    _touch(smi, "#!/bin/sh\necho '| 0     910B3               | OK            |'\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def _touch(file: Path, text: str = "x") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def container(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CONTAINER_ROOT": str(root)}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=environment, timeout=280, check=False
    )


def test_script_is_valid_and_executable() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0
    assert os.access(SCRIPT, os.X_OK)
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", str(SCRIPT)], check=False).returncode == 0


def test_script_starts_the_current_release_with_what_the_guide_lists(host: Path) -> None:
    done = container(host, "--print")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[-2:] == [f"quay.io/ascend/vllm-ascend:v{matrix.load().current}", "bash"]
    for guide in ("ascend.md", "ascend.zh.md"):
        listed = (REPOSITORY / "docs" / guide).read_text("utf-8")
        block = next(part for part in re.findall(r"```\n(.*?)```", listed, re.S) if part.startswith("docker run"))
        by_hand = block.replace("\\\n", " ").split()
        assert _devices(words) == _devices(by_hand)
        assert _mounts(words) == _mounts(by_hand)


def _devices(words: list[str]) -> set[str]:
    return {after for word, after in itertools.pairwise(words) if word == "--device"}


def _mounts(words: list[str]) -> set[str]:
    """Of the driver: those that may be written are the user's own folders."""
    return {after for word, after in itertools.pairwise(words) if word == "-v" and after.endswith(":ro")}


def test_script_takes_some_cards_podman_and_an_a3(host: Path) -> None:
    chosen = container(host, "--print", "--cards", "1,3", "--engine", "podman", "--", "ascent", "doctor")
    assert {"/dev/davinci1", "/dev/davinci3"} <= _devices(chosen.stdout.split())
    assert "/dev/davinci0" not in chosen.stdout
    assert chosen.stdout.startswith("podman run")
    assert "--group-add keep-groups" in chosen.stdout
    assert chosen.stdout.split()[-2:] == ["ascent", "doctor"]
    smi = host / "usr/local/bin/npu-smi"
    smi.write_text("#!/bin/sh\necho '| 0     Ascend910           | OK            |'\n")
    assert f":v{matrix.load().current}-a3 " in container(host, "--print").stdout


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("dev/davinci_manager", "/dev/davinci_manager isn't there"),
        ("dev/davinci7", "/dev/davinci7 isn't there"),
        ("usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64 is missing or empty"),
        ("usr/local/dcmi", "/usr/local/dcmi is missing or empty"),
        ("usr/local/bin/npu-smi", "/usr/local/bin/npu-smi isn't there"),
        ("etc/ascend_install.info", "/etc/ascend_install.info isn't there"),
    ],
)
def test_script_names_what_is_missing(host: Path, broken: str, said: str) -> None:
    path = host / broken
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = container(host, "--print", "--cards", "0,7")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cards"], "--cards needs a value"),
        (["--cards", "a"], "expected numbers with commas"),
        (["--engine", "lxc"], "expected docker or podman"),
        (["--chip", "h100"], "expected a2, a3 or auto"),
        (["--mount", "/nowhere"], "expected HOST:PATH"),
        (["--mount", "/nowhere:/x"], "/nowhere isn't there"),
        (["--gpus"], "unknown option --gpus"),
    ],
)
def test_script_refuses_bad_options_in_words(host: Path, arguments: list[str], said: str) -> None:
    done = container(host, "--print", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_script_says_that_there_is_no_card(tmp_path: Path) -> None:
    done = container(tmp_path, "--print")
    assert done.returncode == 2
    assert "there is no /dev/davinciN" in done.stderr
