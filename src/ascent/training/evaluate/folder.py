"""The folder of an evaluation: a run directory that holds one evaluation and no training.

evaluate.json                    what is evaluated, on which tasks, and how
config.yaml                      the same as far as a run has it
partial/sampled-000003.parquet   a batch that was judged; the next start goes on after it
rollouts/eval-000000-...         all completions, at the end
evaluations.jsonl                one line, the last thing that is written
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.tracking.rollouts import RolloutRecord, schema, write_rollouts
from ascent.tracking.run_directory import RunDirectory, append_json_line, read_json_lines, write_json

SETTINGS_FILE = "evaluate.json"
NUMBER, NAME = 0, "evaluate"  # of the one evaluation


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """Paths, and what is there already."""

    run: RunDirectory
    step: int

    @property
    def partial(self) -> Path:
        """Batches that were judged."""
        return self.run.path / "partial"

    @property
    def whole(self) -> Path:
        """All completions."""
        return self.run.evaluation_rollouts(NUMBER, self.step, 0)

    @property
    def line(self) -> Mapping[str, Any] | None:
        """The evaluation's line; None until it is finished."""
        lines = read_json_lines(self.run.evaluations)
        return lines[-1] if lines else None

    def part(self, kind: str, number: int) -> Path:
        """Batch `number` of the "greedy" or the "sampled" completions."""
        return self.partial / f"{kind}-{number:06d}.parquet"

    def keep(self, kind: str, number: int, records: Sequence[RolloutRecord], seconds: float) -> None:
        """A batch was judged, which took `seconds`. Raises InputError where it can't be written."""
        try:
            write_rollouts(self.part(kind, number), records)
            append_json_line(self.partial / "times.jsonl", {"batch": f"{kind}-{number}", "seconds": seconds})
        except OSError as error:
            raise InputError(
                f"{self.partial}: a batch can't be written: {error.strerror or error}",
                "Make room there, then give the same command again: it goes on from here.",
            ) from error

    def seconds(self) -> float:
        """Of all batches."""
        return sum(float(line["seconds"]) for line in read_json_lines(self.partial / "times.jsonl"))

    def files(self) -> list[Path]:
        """Those with the completions, in their order."""
        return [self.whole] if self.whole.is_file() else sorted(self.partial.glob("*-*.parquet"))

    def finish(self, line: Mapping[str, Any]) -> None:
        """All batches are there: put them into one file, then write the line. A kill in between is made good later."""
        if not self.whole.is_file():
            _merge(self.files(), self.whole)
        append_json_line(self.run.evaluations, line)


@contextlib.contextmanager
def opened_folder(path: Path, settings: Mapping[str, Any], step: int) -> Iterator[EvaluationFolder]:
    """The folder, new or with what an earlier start left; one in which nothing was judged is gone afterwards. Raises
    InputError where it holds another evaluation, is in use, or can't be written."""
    folder = EvaluationFolder(RunDirectory(path), step)
    with contextlib.ExitStack() as stack:
        try:
            if path.exists() and not _is_ours(path):
                raise InputError(f"{path} exists already, and is no evaluation", "Choose another folder with --out.")
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(path))
            _begin(folder, settings)
        except OSError as error:
            raise InputError(f"{path} can't be written: {error.strerror or error}", "Choose another --out.") from error
        try:
            yield folder
        finally:
            _tidy(folder)


def _begin(folder: EvaluationFolder, settings: Mapping[str, Any]) -> None:
    file = folder.run.path / SETTINGS_FILE
    if file.is_file():
        _check_same(file, settings)
    else:
        write_json(file, settings)
    for each in (folder.run.rollouts, folder.partial):
        each.mkdir(exist_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether it is an evaluation's folder, or empty but for what a kill leaves of one that was just begun."""
    return (path / SETTINGS_FILE).is_file() or all(each.name == f".{SETTINGS_FILE}.tmp" for each in path.iterdir())


def _tidy(folder: EvaluationFolder) -> None:
    """Without what an evaluation that judged nothing leaves."""
    if not folder.files():
        path = folder.run.path
        for each in sorted(path.iterdir(), key=lambda each: each.name == SETTINGS_FILE):  # what says whose it is, last
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        path.rmdir()
    elif folder.whole.is_file() and folder.line is not None:
        shutil.rmtree(folder.partial, ignore_errors=True)


def digest_of(settings: Mapping[str, Any]) -> str:
    """Eight letters that name the settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InputError(f"{path}: another evaluation is being written there", "Wait for its end.") from None
    finally:
        os.close(descriptor)


def _check_same(file: Path, settings: Mapping[str, Any]) -> None:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        differ = sorted(name for name in {*stored, *settings} if stored.get(name) != settings.get(name))
    except (ValueError, TypeError) as error:
        raise InputError(f"{file} is not what an evaluation writes: {error}", "Choose another --out.") from error
    if differ:
        told = ", ".join(f"{name}: {stored.get(name)!r:.60} there, {settings.get(name)!r:.60} asked" for name in differ)
        raise InputError(f"{file.parent} holds another evaluation ({told})", "Choose another folder with --out.")


def _merge(files: Sequence[Path], path: Path) -> None:
    import pyarrow.parquet as pq

    beside = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(beside, schema(), compression="zstd", use_dictionary=False) as writer:
        for file in files:
            writer.write_table(pq.read_table(file))
    beside.rename(path)
