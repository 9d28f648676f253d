"""What a run ends with can be used: `ascent export`, the ending's advice, and where the weights come from."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.run_config import write_config

from ascent.cli import build_parser, main
from ascent.errors import InputError
from ascent.models.digests import weights_digest
from ascent.training.export import export

pytestmark = pytest.mark.torch
Trained = Callable[..., "Run"]


@dataclass(frozen=True)
class Run:
    """A run that came to its end: its folder, what it printed, and the weights that it ended with, merged."""

    path: Path
    said: str
    weights: dict[str, Any]
    logps: Any


def log_probabilities(model: Any) -> Any:
    import torch

    ids = torch.tensor([[5, 70, 33, 200, 255, 12, 90, 41]], device=next(model.parameters()).device)
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.float().log_softmax(-1).cpu()


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder)("def f")["input_ids"]
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Any, task_file: Path) -> Iterator[Trained]:
    """trained(lora=True, tied=True, dtype="float32"): three steps, with checkpoints after 2 and 3."""
    from contextlib import redirect_stdout
    from io import StringIO

    from ascent.compat.lora_merge import merged_parameters
    from ascent.training.export import save_trained_model

    runs: dict[tuple[bool, bool, str], Run] = {}
    seen: list[tuple[dict[str, Any], Any]] = []

    def watched(trainer: Any, *arguments: Any) -> None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        lora = hasattr(model, "peft_config")
        parameters = merged_parameters(model) if lora else model.named_parameters()
        names = {name.removeprefix("base_model.model.").replace(".base_layer", ""): value for name, value in parameters}
        seen.append(({name: value.detach().cpu().clone() for name, value in names.items()}, log_probabilities(model)))
        save_trained_model(trainer, *arguments)

    def train(*, lora: bool, tied: bool = True, dtype: str = "float32") -> Run:
        key = (lora, tied, dtype)
        if key not in runs:
            folder = tmp_path_factory.mktemp("export")
            base = tiny_policy(tied=tied, dtype=dtype)
            config = write_config(folder / "c.yaml", base, task_file, save_steps=2, hub_token="hf_secret")
            extra = ["model.lora.r=4"] if lora else []
            with redirect_stdout(StringIO()) as out:
                assert main(["train", str(config), f"model.dtype={dtype}", *extra]) == 0
            runs[key] = Run(folder / "runs" / "run", out.getvalue(), *seen.pop())
        return runs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascent.training.run.save_trained_model", watched)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield train


@pytest.mark.parametrize(
    ("lora", "tied", "dtype"),
    [
        (True, True, "float32"),
        (False, False, "bfloat16"),
        pytest.param(True, False, "bfloat16", marks=pytest.mark.slow),
        pytest.param(True, True, "bfloat16", marks=pytest.mark.slow),
        pytest.param(True, False, "float32", marks=pytest.mark.slow),
        pytest.param(False, True, "bfloat16", marks=pytest.mark.slow),
        pytest.param(False, True, "float32", marks=pytest.mark.slow),
    ],
)
def test_the_exported_model_is_the_trained_one(
    lora: bool, tied: bool, dtype: str, trained: Trained, tiny_policy: Any, tmp_path: Path
) -> None:
    import torch

    run = trained(lora=lora, tied=tied, dtype=dtype)
    found = export(run.path, output=tmp_path / "deep" / "out")
    model = load(found.folder)
    assert str(model.dtype) == f"torch.{dtype}"
    weights = model.state_dict()
    for name, value in run.weights.items():
        assert torch.equal(weights[name], value), name
    difference = (log_probabilities(model) - run.logps).abs().max()
    assert difference < (1e-5 if dtype == "float32" else 0.1 if lora else 1e-6)
    base = load(tiny_policy(tied=tied, dtype=dtype)).state_dict()
    assert any(not torch.equal(base[name], value) for name, value in weights.items()), "it was trained"
    assert found.provenance["kind"] == ("merged" if lora else "full")
    names = {path.name for path in found.folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "ascent_export.json"} <= names
    assert not {
        name for name in names if name.endswith((".pt", ".bin", ".pth")) or "adapter" in name or "state" in name
    }
    assert model.config.tie_word_embeddings == tied


def test_where_the_weights_come_from(
    trained: Trained, tiny_policy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(lora=True)
    folder = tmp_path / "out"
    assert main(["export", str(run.path), "--checkpoint", "2", "--output", str(folder), "--json"]) == 0
    printed, said = capsys.readouterr()
    content = json.loads((folder / "ascent_export.json").read_text())
    assert json.loads(printed) == {**content, "folder": str(folder)}
    assert str(folder) in said
    assert content["schema"] == "ascent.export/1"
    assert (content["run"], content["step"], content["kind"]) == ("run", 2, "merged")
    assert content["weights"] == weights_digest(folder)
    base = tiny_policy()
    assert content["base"] == {"name": str(base), "revision": None, "digest": weights_digest(base)}
    (tasks,) = content["tasks"]
    assert (tasks["since_step"], tasks["train"]["count"], tasks["held_out"]["count"]) == (0, 6, 2)
    assert tasks["train"]["digest"] != tasks["held_out"]["digest"]
    assert content["configuration"]["model"]["lora"]["r"] == 4
    assert content["configuration"]["trainer"]["hub_token"] == "(left out)"
    assert "hf_secret" not in (folder / "README.md").read_text() + printed
    assert content["packages"]["torch"]
    assert "row" in content
    assert content["evaluation"]["before"]["tasks"] == 2
    assert content["evaluation"]["after"] is None, "these weights were not measured"
    assert content["training"]["pass_rate"] is not None
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert content["weights"] in card
    ended = json.loads((run.path / "model" / "ascent_export.json").read_text())
    assert (ended["kind"], ended["step"], ended["evaluation"]["after"]["tasks"]) == ("adapter", 3, 2)
    assert {**ended, **content} == {**content}, "the same things are said"
    assert "held-out pass rate after" in (run.path / "model" / "README.md").read_text()
    assert not (run.path / ".model.tmp").exists()


def test_a_run_that_was_killed(trained: Trained, tmp_path: Path) -> None:
    """Its last complete checkpoint is exported, or one that is named; one that the kill cut short is refused."""
    run = tmp_path / "run"
    shutil.copytree(trained(lora=False).path, run)
    shutil.rmtree(run / "model")
    (run / "checkpoints" / "checkpoint-3" / "ascent_state.json").unlink()
    found = export(run)
    assert found.folder == run / "exports" / "step-2"
    assert found.provenance["evaluation"]["after"] is None
    assert (found.folder / "model.safetensors").read_bytes() == (
        run / "checkpoints" / "checkpoint-2" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match=r"step-2 exists already\n  Choose another folder with --output"):
        export(run)
    with pytest.raises(InputError, match=r"checkpoint-3 isn't complete.*\n  Complete checkpoints: 2\."):
        export(run, checkpoint=3)
    with pytest.raises(InputError, match="checkpoint-7 isn't there"):
        export(run, checkpoint=7)
    (run / "checkpoints" / "checkpoint-2" / "ascent_state.json").unlink()
    with pytest.raises(InputError, match="neither a model nor a complete checkpoint"):
        export(run)
    with pytest.raises(InputError, match="not a run directory"):
        export(tmp_path)
    assert sorted(path.name for path in (run / "exports").iterdir()) == ["step-2"], "nothing half written stays"


def test_a_run_that_went_on_after_its_end(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained(lora=False).path, run)
    assert export(run, output=tmp_path / "ended").provenance["step"] == 3
    later = run / "checkpoints" / "checkpoint-5"
    (run / "checkpoints" / "checkpoint-2").rename(later)
    state = json.loads((later / "ascent_state.json").read_text())
    (later / "ascent_state.json").write_text(json.dumps({**state, "step": 5}))
    assert export(run, output=tmp_path / "later").provenance["step"] == 5


def test_weights_that_are_cut_or_not_all_there_are_refused(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained(lora=False).path, run)
    checkpoint = run / "checkpoints" / "checkpoint-2"
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model-00002-of-00002\.safetensors is missing"):
        export(run, checkpoint=2)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no whole model in it"):
        export(run, checkpoint=2)
    (checkpoint / "pytorch_model_fsdp_0").mkdir()
    with pytest.raises(InputError, match=r"cut over the processes of the training.*\n.*FULL_STATE_DICT"):
        export(run, checkpoint=2)
    assert not (run / "exports").exists() or not list((run / "exports").iterdir())


def advice(run: Run, label: str) -> list[str]:
    """The command that the ending prints beside a label, as words."""
    (line,) = [line for line in run.said.splitlines() if line.startswith(label)]
    return shlex.split(line.removeprefix(label).strip().removeprefix("ascent "))


@pytest.mark.parametrize("lora", [True, False])
def test_the_ending_s_advice_to_export(lora: bool, trained: Trained, tmp_path: Path) -> None:
    run = trained(lora=lora)
    words = advice(run, "take it along")
    assert words == ["export", str(run.path)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False])
def test_the_ending_s_advice_to_ask(
    lora: bool, trained: Trained, ascent: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """With real vLLM, which samples as the trained model would."""
    words = advice(trained(lora=lora), "ask it")
    assert words[-1] == "PROMPT"
    done = ascent(*words[:-1], "def f(a):", "-n", 1, "--max-tokens", 4, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["logp_difference_max"] <= 1e-4


@pytest.mark.slow
def test_check_model_tries_the_merged_model(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    from ascent.models.folder import whole_model

    adapter = trained(lora=True).path / "model"
    merged = whole_model(adapter)
    capsys.readouterr()
    main(["check-model", str(adapter), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == str(merged)
    assert not [finding for finding in found["findings"] if finding["rule"] == "A702" and finding["level"] == "error"]


def test_where_a_model_is_asked_for_an_adapter_will_do(
    trained: Trained, task_file: Path, tiny_policy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """serve, check-model and train; generate is tested with the ending's advice."""
    from ascent.rollout.service import command

    run = trained(lora=True)
    adapter = str(run.path / "model")
    served = command.settings(build_parser().parse_args(["serve", adapter])).engine.model
    assert (Path(served) / "model.safetensors").is_file()
    checkpoint = str(run.path / "checkpoints" / "checkpoint-2")
    other = command.settings(build_parser().parse_args(["serve", checkpoint])).engine.model
    assert other != served
    capsys.readouterr()
    main(["check-model", adapter, "--static", "--json"])
    printed, said = capsys.readouterr()
    assert json.loads(printed)["model"] == str(tiny_policy()), "the base is read, nothing is merged"
    assert f"{adapter} holds an adapter" in said
    config = write_config(tmp_path / "c.yaml", Path(adapter), task_file, max_steps=1)
    assert main(["train", str(config), "tracking.evaluate=false"]) == 0
    origin = json.loads((tmp_path / "runs" / "run" / "origin.json").read_text())
    assert origin["base"] == {"name": adapter, "revision": None, "digest": weights_digest(Path(served))}
