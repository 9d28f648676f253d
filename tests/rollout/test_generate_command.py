"""`ascent generate` with real vLLM: one JSON object, figures that fit, and clear refusals."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def test_figures_of_the_inference_check(
    ascent: Callable[..., subprocess.CompletedProcess[str]], tiny_policy: Callable[..., Path]
) -> None:
    done = ascent(
        "generate", tiny_policy(), "--prompt", "def f(a):", "--prompt", "x = ", "-n", 3, "--max-tokens", 8, "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "ascent.generate/1"
    assert len(found["texts"]) == len(found["tokens"]) == 6
    assert all(1 <= tokens <= 8 for tokens in found["tokens"])
    assert found["tokens_per_second"] > 0
    assert 0 <= found["logp_difference_mean"] <= found["logp_difference_max"] <= 1e-4
    assert "--- completion 6:" in done.stderr


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ascent.cli import main

    assert main(["generate", str(tmp_path)]) == 2
    assert "not a model folder (no config.json in it)" in capsys.readouterr().err
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    assert main(["generate", str(tmp_path)]) == 2
    assert f"Give {tmp_path / 'model'}, which is one." in capsys.readouterr().err
    assert main(["generate", "no-such-owner/no-such-model"]) == 2
    assert "Give the path of a local model folder" in capsys.readouterr().err
    assert main(["generate", str(tmp_path), "-n", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_model_from_a_package(ascent: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = ascent("generate", "HuggingFaceTB/SmolLM2-135M-Instruct", "-n", 1, "--max-tokens", 24, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["logp_difference_max"] <= 1e-3
    assert len(found["texts"][0].split()) >= 8
