"""`ascent bench` as it is called: what it refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.bench import tuned
from ascent.bench.command import Asked, bench
from ascent.cli import main
from ascent.errors import InputError
from ascent.rollout.engines.token_times import Latency, TokenTimes, latency


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr()
    assert not told.out
    return told.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "takes a model (a hub id or a folder), a configuration, or --run RUN"),
        (["MODEL", "--stages", "statc"], "--stages statc: no such stage; did you mean 'static'?"),
        (["MODEL", "--stages", "tuned"], "it needs tuned settings"),
        (["MODEL", "--rows", "0"], "--rows 0: expected at least 1"),
        (["MODEL", "--repeat", "0"], "--repeat 0: expected at least 1"),
        (["MODEL", "--tune", "soon"], "'soon' is no time"),
        (["MODEL", "--tune", "5m", "--tuned", "tune.yaml"], "--tuned FILE gives what --tune TIME would look for"),
        (["MODEL", "--run", "RUN", "--workload", "w.json"], "--workload FILE has prompts and lengths"),
        (["MODEL", "--tuned", "/nowhere/tune.yaml"], "/nowhere/tune.yaml: no such file"),
        (["MODEL", "--apply"], "--apply: of a training step"),
        (["MODEL", "--training", "--tune", "5m", "--svg", "x.svg"], "--tune, --svg: of sampling"),
        (["--training"], "--training takes a configuration file"),
        (["./no-such-model"], "no such folder"),
        (["builtin:starter", "rollout.engine=transformers"], "vLLM's settings"),
    ],
)
def test_bad_arguments_get_an_answer(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in said(arguments, capsys)


def test_a_fragment_of_other_settings_is_refused(tmp_path: Path) -> None:
    fragment = tmp_path / "tune.yaml"
    fragment.write_text("rollout:\n  max_num_seqs: 64\nmodel:\n  path: another\n")
    with pytest.raises(InputError, match=r"model\.path: not settings of an engine"):
        tuned.read(fragment)


def test_what_tune_leaves_behind_is_read(tmp_path: Path) -> None:
    (tmp_path / "tune.yaml").write_text("# a comment\nrollout:\n  max_num_seqs: 64\n  threads: null\n")
    found = tuned.read(tmp_path / "tune.yaml")
    assert found.overrides == ["rollout.max_num_seqs=64", "rollout.threads=null"]
    content = {
        "schema": "ascent.tune/1",
        "settings": {"memory.kv_cache_mb": 1024, "rollout.enforce_eager": False},
        "environment": {"OMP_PROC_BIND": "true"},
    }
    (tmp_path / "tune.json").write_text(json.dumps(content))
    for path in (tmp_path, tmp_path / "tune.json"):
        found = tuned.read(path)
        assert found.overrides == ["memory.kv_cache_mb=1024", "rollout.enforce_eager=false"]
        assert found.environment == {"OMP_PROC_BIND": "true"}
    (tmp_path / "tune.yaml").write_text("{}\n")  # the configured settings are the fastest
    assert tuned.read(tmp_path / "tune.yaml").overrides == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "ascent.tune/2"}', '{"schema": "ascent.tune/1"}'])
def test_a_result_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(text)
    with pytest.raises(InputError, match="no settings of `ascent tune` can be read"):
        tuned.read(tmp_path)


def test_neither_model_nor_run() -> None:
    with pytest.raises(InputError, match="takes a model"):
        bench(Asked(None), watts=None, say=print)


def test_latencies_are_of_nearest_rank() -> None:
    assert latency([]) is None
    assert latency([3.0]) == Latency(3.0, 3.0)
    assert latency([4.0, 1.0, 3.0, 2.0]) == Latency(2.0, 4.0)
    assert latency([float(each) for each in range(100, 0, -1)]) == Latency(50.0, 95.0)


def test_token_times_start_anew() -> None:
    times = TokenTimes()
    times.add([0.1], [])
    times.add([], [0.2, 0.3])
    assert times.take() == ([0.1], [0.2, 0.3])
    assert times.take() == ([], [])
