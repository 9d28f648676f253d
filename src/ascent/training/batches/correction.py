"""TRL's correction against the sampler, with the trainer's log-probabilities taken from the training forward.

Where a generation is trained on in one optimizer step, the old policy is the one that is trained, and a forward pass
without gradient would only compute what the training forward gives anyway. So the pass is left out, and what it was for
is made here: the ratio of trainer to sampler (TRL's `vllm_importance_sampling_*`), its metrics, and the difference by
which a sampler with other weights is found out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ascent.training.batches.rows import NEWEST, PLACE, Rows, SubBatch
from ascent.training.step.importance_weights import COLUMNS, figures, weight_sums
from ascent.training.step.sampler_difference import Difference

_SUMS = 6  # columns of sums before those of the weights
_DIFFERENCE, _RATIO = "sampling/sampling_logp_difference/", "sampling/importance_sampling_ratio/"


@dataclass(frozen=True, slots=True)
class Settings:
    """TRL's `vllm_importance_sampling_mode`, `_clip_min` and `_clip_max`."""

    mode: str
    clip_min: float | None
    clip_max: float | None

    def ratio(self, trainer_BC: Tensor, sampler_BC: Tensor, mask_BC: Tensor) -> Tensor:
        """The importance ratio, (B, C), or (B, 1) of whole sequences, as TRL makes it. A token that the sampler could
        not score (NaN) has ratio 1; with a mode that masks, a ratio out of bounds is 0."""
        difference = torch.nan_to_num((trainer_BC - sampler_BC) * mask_BC, nan=0.0)
        if self.mode.startswith("sequence"):
            difference = difference.sum(dim=-1, keepdim=True)
        ratio = torch.exp(difference)
        if self.mode.endswith("truncate"):
            return torch.clamp(ratio, min=self.clip_min, max=self.clip_max)
        low = -math.inf if self.clip_min is None else self.clip_min
        high = math.inf if self.clip_max is None else self.clip_max
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


@dataclass(frozen=True, slots=True)
class Corrected:
    """What one optimizer step's training forwards showed, of all ranks."""

    metrics: dict[str, float]  # TRL's `sampling/*`, of the rows that were computed
    newest: Difference  # of the tokens that were sampled with the weights that are trained
    masked: frozenset[int]  # places of rows whose ratio leaves no token in the loss
    logps: Mapping[int, Any]  # place -> (C,) float32 of NumPy's, padded, of rows that this rank computed, or all did


class Correction:
    """Gives each sub-batch its ratio, and sums up what an optimizer step showed."""

    def __init__(self, settings: Settings, accelerator: Any, *, rows_move: bool = False) -> None:
        """`rows_move`: a rank may compute what another one sampled."""
        self._settings, self._accelerator, self._rows_move = settings, accelerator, rows_move
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._logps: list[tuple[Tensor, Tensor]] = []  # (B,) places, (B, C)

    def give(self, rows: Rows, logps_BC: Tensor) -> None:
        """Put `importance_sampling_ratio` into `rows`, whose training forward gave `logps_BC`."""
        mask_BC = (
            rows["completion_mask"] if rows.get("tool_mask") is None else rows["completion_mask"] * rows["tool_mask"]
        )
        sampler_BC, trainer_BC = rows["sampling_per_token_logps"], logps_BC.detach()
        ratio = self._settings.ratio(trainer_BC, sampler_BC, mask_BC)
        rows["importance_sampling_ratio"] = ratio
        self._seen.append(self._figures(rows, (trainer_BC - sampler_BC).abs(), ratio, mask_BC.bool()))
        if not (isinstance(rows, SubBatch) and rows.filling):
            self._logps.append((rows[PLACE], trainer_BC.float()))

    def forget(self) -> None:
        """No pass has been made."""
        self._seen, self._logps = [], []

    def _figures(self, rows: Rows, delta_BC: Tensor, ratio: Tensor, mask_BC: Tensor) -> tuple[Tensor, Tensor]:
        """(13,) sums, those of the weights, and extremes; and (B,) the places of masked rows (-1: not masked). Stays on
        the device."""
        real_BC = mask_BC.any(dim=1, keepdim=True)  # a row without a token is another rank's filling
        known_BC = mask_BC & ~delta_BC.isnan()
        newest_BC = known_BC & rows[NEWEST][:, None]
        counted = mask_BC if ratio.shape == mask_BC.shape else real_BC
        highest = delta_BC.masked_fill(~known_BC, 0.0).max()
        sums = [
            (delta_BC.masked_fill(~known_BC, 0.0)).sum(),
            known_BC.sum(),
            (delta_BC.masked_fill(~newest_BC, 0.0)).sum(),
            newest_BC.sum(),
            ratio.masked_fill(~counted, 0.0).sum(),
            counted.sum(),
            *weight_sums(ratio, counted),
            highest,
            ratio.masked_fill(~counted, -math.inf).max(),
            -ratio.masked_fill(~counted, math.inf).min(),
        ]
        gone_B = ~(mask_BC * ratio).ne(0).any(dim=1) & real_BC[:, 0]
        return torch.stack([each.float() for each in sums]), torch.where(gone_B, rows[PLACE], -1)

    def finish(self) -> Corrected | None:
        """What the step showed; None where no row was computed on any rank. Collective."""
        seen, self._seen = self._seen, []
        logps = self._take_logps()
        device = self._accelerator.device
        sums = _SUMS + COLUMNS
        nothing_F = torch.tensor([0.0] * sums + [-math.inf] * 3, device=device)
        figures_NF = torch.stack([nothing_F, *(each for each, _ in seen)])
        local_1F = torch.cat([figures_NF[:, :sums].sum(0), figures_NF[:, sums:].max(0).values])[None]
        figures_RF = self._of_all_ranks(local_1F, 0.0)
        total, tokens, newest_total, newest_tokens, ratios, counted, *weights = figures_RF[:, :sums].sum(0).tolist()
        highest, largest, smallest = figures_RF[:, sums:].max(0).values.tolist()
        places_B = torch.cat([torch.full((1,), -1, device=device), *(each for _, each in seen)])
        if not counted:  # no row with a token was computed
            return None
        masked = frozenset(place for place in self._of_all_ranks(places_B, -1).tolist() if place >= 0)
        metrics = {
            _DIFFERENCE + "mean": total / tokens if tokens else 0.0,
            _DIFFERENCE + "max": highest,
            _RATIO + "min": -smallest,
            _RATIO + "mean": ratios / counted,
            _RATIO + "max": largest,
            **figures(weights),
        }
        return Corrected(metrics, Difference(newest_total, int(newest_tokens)), masked, logps)

    def _take_logps(self) -> dict[int, Any]:
        """What the passes gave, of all ranks where rows move between them. Then it is collective."""
        taken, self._logps = self._logps, []
        device = self._accelerator.device
        width = max((logps_BC.shape[1] for _, logps_BC in taken), default=1)
        padded = [functional.pad(logps_BC, (0, width - logps_BC.shape[1])) for _, logps_BC in taken]
        places_B = torch.cat([torch.full((1,), -1, device=device), *(places_B for places_B, _ in taken)])
        logps_BC = torch.cat([torch.zeros((1, width), device=device), *padded])
        if self._rows_move and self._accelerator.num_processes > 1:
            logps_BC = self._of_all_ranks(self._accelerator.pad_across_processes(logps_BC, dim=1), 0.0)
            places_B = self._of_all_ranks(places_B, -1)
        rows = zip(places_B.tolist(), logps_BC.cpu().numpy(), strict=True)
        return {place: logps_C for place, logps_C in rows if place >= 0}

    def _of_all_ranks(self, values: Tensor, filling: float) -> Tensor:
        if self._accelerator.num_processes == 1:
            return values
        padded: Tensor = self._accelerator.pad_across_processes(values, dim=0, pad_index=filling)
        gathered: Tensor = self._accelerator.gather(padded)
        return gathered


@contextmanager
def without_old_pass(trainer: Any) -> Iterator[None]:
    """While TRL scores a generation: it takes no log-probabilities of the old policy, and makes no ratio of them."""
    trainer.vllm_importance_sampling_correction = False
    try:
        yield
    finally:
        trainer.vllm_importance_sampling_correction = True
