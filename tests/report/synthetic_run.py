"""Run directories as a training would have left them, made of numbers drawn at random: of any size, in seconds.

Tasks are `a * x + b * y + c`; programs are right, off by one, lists of the visible cases, or broken, and their outcomes
are what these programs would get. A completion's tokens are the bytes of its text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ascent.alarms.over_run import judge_run
from ascent.tracking.packed_files import MOST_ROWS, packed_name
from ascent.tracking.rollouts import schema

VISIBLE, HIDDEN = 2, 6


@dataclass(frozen=True)
class Shape:
    """How large a run is, and what goes wrong in it. Steps are numbered from 1; each has a generation of its own."""

    steps: int = 60
    prompts: int = 8
    completions: int = 8  # of a prompt
    tasks: int = 24
    seed: int = 0
    length: int = 0  # characters that every program has at least
    lost: int = 2  # tasks that get worse
    hollow_from: int = 30  # step from which programs that list the visible cases spread
    slow_step: int | None = 40
    stale_from: int | None = 20
    audit: bool = True  # hidden tests are audited, not paid
    ended: bool = True


def make_run(path: Path, shape: Shape = Shape(), *, extra: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a run; `extra` are columns of further completions of the last generation, each on top of a usual one."""
    (path / "rollouts").mkdir(parents=True)
    draws = np.random.default_rng(shape.seed)
    metrics = []
    for step in range(1, shape.steps + 1):
        rows = generation(shape, step, draws, path.name)
        if step == shape.steps:
            rows += [{**rows[0], **each} for each in extra]
        write_rows(path / "rollouts" / f"{step - 1:06d}-rank0.parquet", rows)
        metrics.append(_metrics(shape, step, rows, draws))
    _write_lines(path / "metrics.jsonl", metrics)
    _write_lines(path / "tasks.jsonl", [_task_line(place) for place in range(shape.tasks)])
    _write_evaluations(path, shape)
    (path / "config.yaml").write_text(
        f"model:\n  path: made/up\ntrainer:\n  learning_rate: 1.0e-{5 + shape.seed % 2}\n"
    )
    checkpoint = path / "checkpoints" / f"checkpoint-{shape.steps}"
    checkpoint.mkdir(parents=True)
    state = {"generation": shape.steps, "micro_step": shape.steps, "step": shape.steps, "evaluations": 2, "files": []}
    (checkpoint / "ascent_state.json").write_text(json.dumps(state))
    byte_tokenizer().save(str(checkpoint / "tokenizer.json"))
    if shape.ended:
        (path / "model").mkdir()
    _write_lines(path / "alarms.jsonl", [alarm.to_json() for alarm in judge_run(path).alarms])
    return path


def make_packed(path: Path, shape: Shape, *, small: bool = False) -> Path:
    """A large run's rollouts and little else: packed into one file, or as small ones. Completions explain their program
    in some 500 characters of words drawn at random; 40 generations are drawn, and come again and again."""
    (path / "rollouts").mkdir(parents=True)
    draws = np.random.default_rng(shape.seed)
    kept = [_explained(generation(shape, step, draws, path.name), draws) for step in range(1, min(40, shape.steps) + 1)]
    name = packed_name(0, shape.steps - 1)
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path / "rollouts" / name, kept[0].schema, compression="zstd", use_dictionary=False) as writer:
        for step in range(1, shape.steps + 1):
            table = _at_step(kept[step % len(kept)], step, path.name)
            if small:
                pq.write_table(
                    table,
                    path / "rollouts" / f"{step - 1:06d}-rank0.parquet",
                    compression="zstd",
                    use_dictionary=False,
                )
                continue
            waiting.append(table)
            if sum(map(len, waiting)) >= 20 * MOST_ROWS or step == shape.steps:
                writer.write_table(pa.concat_tables(waiting), MOST_ROWS)
                waiting = []
    if small:
        (path / "rollouts" / name).unlink()
    (path / "config.yaml").write_text("model:\n  path: made/up\n")
    _write_lines(path / "tasks.jsonl", [_task_line(place) for place in range(shape.tasks)])
    _write_lines(path / "metrics.jsonl", [{"step": step, "times": {"step": 1.0}} for step in range(1, shape.steps + 1)])
    return path


def generation(shape: Shape, step: int, draws: np.random.Generator, run: str) -> list[dict[str, Any]]:
    """The rows of a generation."""
    rows: list[dict[str, Any]] = []
    for group in range(shape.prompts):
        task = int(draws.integers(shape.tasks))
        kinds = [_kind(shape, step, task, draws) for _ in range(shape.completions)]
        made = [
            _row(shape, run, step, group * shape.completions + place, task, kind, draws)
            for place, kind in enumerate(kinds)
        ]
        rewards = [row["reward"] for row in made]
        spread = float(np.std(rewards)) or 1.0
        for place, row in enumerate(made):
            row["group_id"] = f"{run}/{step - 1}/{group}"
            row["index"] = place
            row["advantage"] = (row["reward"] - float(np.mean(rewards))) / spread
            row["signal"] = len(set(rewards)) > 1
        rows += made
    return rows


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as a table of the present rollout schema."""
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema()]
    return pa.Table.from_arrays(columns, schema=schema())


def write_rows(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str] = (), version: int = 3) -> None:
    """A rollout file; with `columns` it has only these, as one of an older `version`."""
    table = table_of(rows)
    if columns:
        table = table.select(list(columns))
    pq.write_table(table.replace_schema_metadata({"ascent.rollouts": str(version)}), path, compression="zstd")


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_TOKENIZER = byte_tokenizer()


def task_name(place: int) -> str:
    """The task's id."""
    return f"linear/{place:04d}"


def _numbers(place: int) -> tuple[int, int, int]:
    return place % 7 + 1, place % 5 + 2, place % 11 - 5


def _tests(place: int) -> list[tuple[int, int, int]]:
    a, b, c = _numbers(place)
    return [(x, y, a * x + b * y + c) for x, y in ((1, 2), (3, 0), (0, 0), (-4, 2), (10, 7), (5, -5), (2, 2), (100, 1))]


def _kind(shape: Shape, step: int, task: int, draws: np.random.Generator) -> str:
    done = step / shape.steps
    if task < shape.lost:
        done = 1.0 - done
    if shape.hollow_from < shape.steps and step > shape.hollow_from and task % 3 == 0:
        share = (step - shape.hollow_from) / (shape.steps - shape.hollow_from)
        if draws.random() < 0.6 * share:
            return "hollow"
    right = 1 / (1 + math.exp(-(6 * done - 2 - (task % 5) * 0.6)))
    drawn = draws.random()
    return "right" if drawn < right else "broken" if drawn > 0.97 else "near"


def _program(place: int, kind: str, variant: int) -> str:
    a, b, c = _numbers(place)
    if kind == "right":
        forms = (
            f"def f(x, y):\n    return {a} * x + {b} * y + {c}",
            f"def f(x, y):\n    total = {a} * x\n    total += {b} * y\n    return total + {c}",
        )
        return forms[variant % 2]
    if kind == "near":
        return f"def f(x, y):\n    # close\n    return {a} * x + {b} * y + {c + 1 + variant % 2}"
    if kind == "hollow":
        (x1, y1, z1), (x2, y2, z2) = _tests(place)[:VISIBLE]
        return (
            f"def f(x, y):\n    if (x, y) == ({x1}, {y1}):\n        return {z1}\n"
            f"    if (x, y) == ({x2}, {y2}):\n        return {z2}\n    return 0"
        )
    return "def f(x, y)\n    return x"


def _outcomes(place: int, kind: str) -> list[str]:
    tests = _tests(place)
    if kind == "right":
        return ["passed"] * len(tests)
    if kind == "near":
        return ["failed"] * len(tests)
    if kind == "broken":
        return ["error"] * len(tests)
    return ["passed" if at < VISIBLE or value == 0 else "failed" for at, (_, _, value) in enumerate(tests)]


def _row(
    shape: Shape, run: str, step: int, place: int, task: int, kind: str, draws: np.random.Generator
) -> dict[str, Any]:
    program = _program(task, kind, int(draws.integers(4)))
    if shape.length > len(program):
        program += "\n" + "\n".join(f"# step by step, line {at}" for at in range((shape.length - len(program)) // 24))
    ids = _TOKENIZER.encode(program).ids
    logps = -draws.exponential(0.25, len(ids)).astype(np.float32)
    outcomes = _outcomes(task, kind)
    visible, hidden = outcomes[:VISIBLE], outcomes[VISIBLE:]
    passes = all(outcome == "passed" for outcome in visible)
    paid = visible if shape.audit else outcomes
    passed = sum(outcome == "passed" for outcome in paid) / len(paid)
    behind = 1 if shape.stale_from is not None and step >= shape.stale_from else 0
    return {
        "sample_id": f"{run}/{step - 1}/0/{place}",
        "task_id": task_name(task),
        "evaluation": None,
        "generation": step - 1,
        "step": step,
        "rank": 0,
        "prompt": _prompt(task),
        "completion": f"```python\n{program}\n```",
        "program": program,
        "prompt_ids": _TOKENIZER.encode("# f").ids,
        "completion_ids": ids,
        "logps": logps,
        "finish_reason": "length" if draws.random() < 0.02 else "stop",
        "weight_version": step - 1 - behind,
        "reward": 0.1 * (kind != "broken") + 0.9 * passed,
        "rewards": [("code", passed)],
        "parts": [("compile", float(kind != "broken")), ("tests", passed)],
        "compiled": kind != "broken",
        "outcomes": paid,
        "audit_outcomes": hidden if shape.audit and passes else None,
        "visible_tests": VISIBLE,
        "markers": ["visible_inputs"] if kind == "hollow" else [],
        "error": "SyntaxError: expected ':' (line 1)" if kind == "broken" else None,
        "sandbox_seconds": float(draws.uniform(0.01, 0.05)),
        "sandbox_level": "namespaced",
        "kept": True,
        "dropped_why": None,
        "sample_seconds": float(draws.uniform(0.2, 0.9)) * (9 if step == shape.slow_step else 1),
        "trainer_logps": logps + draws.normal(0, 1e-4, len(ids)).astype(np.float32),
        "weight_spans": None,
    }


def _prompt(task: int) -> str:
    a, b, c = _numbers(task)
    return f"Write a function f(x, y) that returns {a} times x plus {b} times y plus {c}."


def _task_line(place: int) -> dict[str, Any]:
    tests = [
        {"kind": "function", "input": f"f({x}, {y})", "expected": str(z), "note": "", "cut": 0}
        for x, y, z in _tests(place)
    ]
    return {
        "schema": "ascent.tasks/1",
        "task_id": task_name(place),
        "split": "train",
        "since_step": 0,
        "digest": f"sha256:{place:064x}",
        "family": ("sums", "offsets", "mixed")[place % 3],
        "language": "python",
        "entry_point": "f",
        "prompt": _prompt(place),
        "prefix": "",
        "prelude": "",
        "visible_tests": tests[:VISIBLE],
        "hidden_tests": tests[VISIBLE:],
    }


def _metrics(shape: Shape, step: int, rows: Sequence[dict[str, Any]], draws: np.random.Generator) -> dict[str, Any]:
    rewards = [row["reward"] for row in rows]
    lengths = [len(row["completion_ids"]) for row in rows]
    passers = [row for row in rows if row["audit_outcomes"] is not None]
    hollow = [row for row in passers if row["audit_outcomes"].count("passed") < HIDDEN / 2]
    slow = 7.5 if step == shape.slow_step else 1.0
    times = {
        "generate": float(draws.uniform(0.9, 1.1)) * slow,
        "reward_exposed": float(draws.uniform(0.05, 0.1)),
        "logps": 0.12,
        "update": float(draws.uniform(0.5, 0.6)),
        "sync": 0.04,
        "other": 0.03,
    }
    groups = len({row["group_id"] for row in rows})
    alike = sum(not row["signal"] for row in rows) // shape.completions
    return {
        "step": step,
        "total_steps": shape.steps,
        "epoch": step / 10,
        "generation": step - 1,
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "pass_rate": sum(all(o == "passed" for o in row["outcomes"]) for row in rows) / len(rows),
        "loss": float(draws.normal(0, 0.02)),
        "grad_norm": float(draws.uniform(0.4, 0.9)),
        "entropy": 0.9 * math.exp(-step / shape.steps) + float(draws.normal(0, 0.01)),
        "learning_rate": 5e-4 * (1 - step / (shape.steps + 1)),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": sum(row["finish_reason"] == "length" for row in rows) / len(rows),
        "sampling/sampling_logp_difference/mean": 1e-4,
        "sampling/sampling_logp_difference/max": 4e-4,
        "rollout/staleness": int(shape.stale_from is not None and step >= shape.stale_from),
        "signal_groups": _signal_groups(rows),
        "signals/groups": groups,
        "signals/completions": len(rows),
        "signals/groups_without_signal": alike,
        "signals/passers_known": len(passers),
        "signals/hollow": len(hollow),
        "signals/visible_fraction": float(
            np.mean([row["outcomes"][:VISIBLE].count("passed") / VISIBLE for row in rows])
        ),
        **(
            {"signals/hidden_fraction": float(np.mean([r["audit_outcomes"].count("passed") / HIDDEN for r in passers]))}
            if passers
            else {}
        ),
        "signals/distinct_share": len({row["program"] for row in rows}) / len(rows),
        "times": {"step": sum(times.values()), **times, "reward_total": 1.4},
        "engine": {
            "kv_cache_use": 0.42,
            "running": 64,
            "waiting": 0,
            "preemptions": 3 if step == shape.slow_step else 0,
            "prefix_hit_rate": 0.8,
            "tokens_per_second": 2400 / slow,
            "latency_p50": 0.5 * slow,
            "latency_p95": 0.9 * slow,
            "time_to_first_token": 0.0,
        },
        "device": {"used_bytes": 2.1e9, "peak_bytes": 2.6e9, "total_bytes": 24e9},
    }


def _write_evaluations(path: Path, shape: Shape) -> None:
    halves = {}
    lines = []
    for number, (when, step, level) in enumerate((("before", 0, 0.3), ("after", shape.steps, 0.8))):
        draws = np.random.default_rng(number)
        results = [
            {
                "task_id": f"held/{place:03d}",
                "family": ("sums", "offsets")[place % 2],
                "prompt": _prompt(place),
                "greedy": float(draws.random() < level),
                "sampled": round(float(draws.binomial(4, level)) / 4, 2),
                "completion": _program(place, "right" if draws.random() < level else "near", 0),
            }
            for place in range(32)
        ]
        halves[when] = {"results": results, "step": step}
        rates = {kind: float(np.mean([row[kind] for row in results])) for kind in ("greedy", "sampled")}
        lines.append(
            {
                "evaluation": number,
                "name": when,
                "step": step,
                "generation": step,
                **rates,
                "completions": 160,
                "seconds": 3.0,
                "engine": None,
            }
        )
    (path / "evaluation.json").write_text(json.dumps(halves))
    _write_lines(path / "evaluations.jsonl", lines)


def _signal_groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """An entry for each group."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    columns: dict[str, list[Any]] = {}
    for of in groups.values():
        passers = [row for row in of if _all_passed(row["outcomes"][:VISIBLE])]
        hidden = [row["audit_outcomes"] or row["outcomes"][VISIBLE:] for row in passers]
        entry = {
            "task": of[0]["task_id"],
            "completions": len(of),
            "scored": len(of),
            "reward": sum(row["reward"] for row in of),
            "signal": int(of[0]["signal"]),
            "distinct": len({row["program"] for row in of}),
            "passed_visible": len(passers),
            "passers_known": len(passers),
            "hollow": sum(outcomes.count("passed") < HIDDEN / 2 for outcomes in hidden),
            "solved": sum(_all_passed(outcomes) for outcomes in hidden),
        }
        for name, value in entry.items():
            columns.setdefault(name, []).append(value)
    return columns


def _all_passed(outcomes: Sequence[str]) -> bool:
    return all(outcome == "passed" for outcome in outcomes)


def _explained(rows: Sequence[dict[str, Any]], draws: np.random.Generator) -> pa.Table:
    words = np.array(
        [f"{head}{tail}" for head in "bdfglmnprst" for tail in ("an", "o", "eri", "ust", "ily", "ock", "ed")]
    )
    for row in rows:
        row["completion"] = f"{' '.join(draws.choice(words, 110))}\n{row['completion']}"
    return table_of(rows)


def _at_step(table: pa.Table, step: int, run: str) -> pa.Table:
    """A generation's table as that of another step."""
    changed = {
        "step": pa.array(np.full(len(table), step), pa.int64()),
        "generation": pa.array(np.full(len(table), step - 1), pa.int64()),
        "weight_version": pa.array(np.full(len(table), step - 1), pa.int64()),
        "sample_id": pa.array([f"{run}/{step - 1}/0/{place}" for place in range(len(table))]),
        "group_id": pa.array([f"{run}/{step - 1}/{place // 8}" for place in range(len(table))]),
    }
    for name, column in changed.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
