"""A completion token by token: text, log-probabilities of sampler and trainer, and the weights that sampled it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ascent.report.page.run_files import Stamp, stamp_of
from ascent.report.page.visible_text import visible

MOST_TOKENS = 4000
_HEATS = (0.9, 0.6, 0.3, 0.1, 0.02)
_LARGEST_TOKENIZER = 200_000_000  # bytes


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token. `text` is None without a tokenizer; log-probabilities are None where they weren't recorded.
    `difference` is trainer minus sampler."""

    place: int
    id: int
    text: str | None
    logp: float | None
    trainer_logp: float | None
    version: int | None

    @property
    def difference(self) -> float | None:
        """Trainer minus sampler, nat."""
        if self.logp is None or self.trainer_logp is None:
            return None
        return self.trainer_logp - self.logp

    @property
    def heat(self) -> int:
        """How unlikely the sampler thought it: how many of the probabilities `_HEATS` it lies below."""
        return 0 if self.logp is None else sum(math.exp(self.logp) < bound for bound in _HEATS)


@dataclass(slots=True)
class Tokenizers:
    """The tokenizer of a run, from its model or its newest checkpoint; read once."""

    run: Path
    _loaded: tuple[Path, Stamp, Tokenizer | None] | None = field(default=None)

    def get(self) -> Tokenizer | None:
        """The tokenizer, or None where the run has none yet or it can't be used."""
        path = self._newest()
        if path is None:
            return None
        try:
            stamp = stamp_of(path)
            if self._loaded is None or self._loaded[:2] != (path, stamp):
                self._loaded = path, stamp, None
                if path.stat().st_size <= _LARGEST_TOKENIZER:
                    self._loaded = path, stamp, Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        except Exception as error:
            # the library raises nothing narrower for a file that is no tokenizer
            if type(error) is not Exception:
                raise
            return None
        return self._loaded[2]

    def _newest(self) -> Path | None:
        model = self.run / "model" / "tokenizer.json"
        checkpoints = sorted(
            self.run.glob("checkpoints/checkpoint-*/tokenizer.json"), key=lambda path: path.parent.name
        )
        return next((path for path in (model, *reversed(checkpoints)) if path.is_file()), None)


def shown_tokens(row: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[ShownToken]:
    """The first `MOST_TOKENS` tokens of a row that has `completion_ids`, `logps`, `trainer_logps`, `weight_version` and
    `weight_spans`."""
    ids: Sequence[int] = list(row.get("completion_ids") or ())[:MOST_TOKENS]
    logps, trainer_logps = list(row.get("logps") or ()), list(row.get("trainer_logps") or ())
    versions = _versions(row, len(ids))
    return [
        ShownToken(place, token, _text(token, tokenizer), _at(logps, place), _at(trainer_logps, place), versions[place])
        for place, token in enumerate(ids)
    ]


def _text(token: int, tokenizer: Tokenizer | None) -> str | None:
    if tokenizer is None:
        return None
    try:
        text = tokenizer.decode([token], skip_special_tokens=False)
    except OverflowError:
        return None  # an id that no tokenizer has
    return visible(text) or tokenizer.id_to_token(token) or ""


def _at(values: Sequence[float | None], place: int) -> float | None:
    value = values[place] if place < len(values) else None
    return value if value is not None and math.isfinite(value) else None


def _versions(row: Mapping[str, Any], count: int) -> list[int | None]:
    """The weights of each token: a span holds from its start to the next one's."""
    versions: list[int | None] = [row.get("weight_version")] * count
    for span in row.get("weight_spans") or ():
        start, version = span.get("start"), span.get("version")
        if isinstance(start, int) and isinstance(version, int) and 0 <= start < count:
            versions[start:] = [version] * (count - start)
    return versions
