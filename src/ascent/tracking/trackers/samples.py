"""Some completions of a step as a table, in each tracker's own form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascent.tracking.rollouts import RolloutRecord

MOST = 16  # rows of a step
_LONGEST = 4_000  # characters of a cell
_NAME = "samples"

COLUMNS = ("step", "task", "prompt", "completion", "reward", "tests", "hidden", "markers", "sample")


def rows_of(records: Sequence[RolloutRecord]) -> list[list[Any]]:
    """The table's rows: texts shortened, outcomes counted."""
    return [
        [
            record.step,
            record.task_id,
            _short(record.prompt),
            _short(record.completion),
            record.reward,
            _passed(record.outcomes),
            _passed(record.audit_outcomes or ()),
            ", ".join(record.markers or ()),
            record.sample_id,
        ]
        for record in records[:MOST]
    ]


def _short(text: str) -> str:
    """As much as a cell should hold, without characters that change how a terminal or a page shows what follows."""
    kept = text[:_LONGEST]
    shown = "".join(each if each.isprintable() or each in "\n\t" else f"\\u{ord(each):04x}" for each in kept)
    return shown + (f" ... ({len(text) - len(kept)} characters more)" if len(text) > len(kept) else "")


def _passed(outcomes: Sequence[str]) -> str:
    return f"{sum(outcome == 'passed' for outcome in outcomes)}/{len(outcomes)}" if outcomes else ""


def _to_tensorboard(callback: Any, step: int, rows: Sequence[Sequence[Any]]) -> None:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", "<br>")):
            text = text.replace(mark, safe)
        return text

    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    callback.tb_writer.add_text(_NAME, "\n".join(lines), step)


def _to_trackio(callback: Any, step: int, rows: Sequence[Sequence[Any]]) -> None:
    import pandas

    table = callback._trackio.Table(dataframe=pandas.DataFrame(list(rows), columns=list(COLUMNS)))
    callback._trackio.log({_NAME: table, "train/global_step": step})


def _to_swanlab(callback: Any, step: int, rows: Sequence[Sequence[Any]]) -> None:
    texts = ["\n\n".join(f"{name}: {value}" for name, value in zip(COLUMNS, row, strict=True)) for row in rows]
    swanlab = callback._swanlab
    shown = [swanlab.Text(text, caption=str(row[1])) for text, row in zip(texts, rows, strict=True)]
    swanlab.log({_NAME: shown}, step=step)


def _to_wandb(callback: Any, step: int, rows: Sequence[Sequence[Any]]) -> None:
    table = callback._wandb.Table(columns=list(COLUMNS), data=[list(row) for row in rows])
    callback._wandb.log({_NAME: table, "train/global_step": step})


def _to_mlflow(callback: Any, step: int, rows: Sequence[Sequence[Any]]) -> None:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    callback._ml_flow.log_table(columns, f"{_NAME}/step-{step:06d}.json")


LOG_TABLE: Mapping[str, Callable[[Any, int, Sequence[Sequence[Any]]], None]] = {
    "tensorboard": _to_tensorboard,
    "trackio": _to_trackio,
    "swanlab": _to_swanlab,
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
}
