"""The engines that can be asked: vLLM in this process, transformers, or a standing service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ascent import devices
from ascent.bench.regress.service import StandingService
from ascent.bench.regress.subject import EngineChoice, Subject
from ascent.models.folder import load_tokenizer
from ascent.rollout.engine import EngineSettings, RolloutEngine
from ascent.rollout.engines.scoring import ScoringEngine, TokenScores
from ascent.training.evaluate.policy import eos_token_ids
from ascent.types import Completion, RolloutRequest

# So much on every machine: with a share of the device the cache would take what other parts need less of, and what an
# engine takes would never change. Requests that find no room in it wait.
_KV_CACHE_BYTES = {"cpu": 512 * 2**20, "cuda": 4 * 2**30, "npu": 4 * 2**30}


class LocalRolloutEngine(RolloutEngine, ScoringEngine, Protocol):
    """An engine in this process."""


class LocalSubject:
    """An engine in this process, which it has to itself: memory is that of the process and its device."""

    def __init__(self, engine: LocalRolloutEngine, eos: tuple[int, ...]) -> None:
        self._engine = engine
        self.eos_token_ids = eos

    def sample(self, requests: Sequence[RolloutRequest]) -> list[Completion]:
        """See Subject. What draws from the process's random state, as transformers does, is seeded too."""
        import torch

        with devices.unchanged_random_state():
            torch.manual_seed(requests[0].seed or 0)
            self._engine.submit(requests)
            completions: list[Completion] = []
            while self._engine.unfinished():
                completions += self._engine.poll()
        return completions

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """See Subject."""
        return self._engine.score(sequences)

    def memory(self) -> int | None:
        """See Subject."""
        return devices.peaks()[0]

    def processes(self) -> list[int]:
        """See Subject."""
        return []


def usual_dtype() -> str:
    """What a local engine computes in where nobody says."""
    return "float32" if devices.kind() == "cpu" else "bfloat16"


@contextlib.contextmanager
def opened(choice: EngineChoice, folder: Path) -> Iterator[Subject]:
    """The engine of a choice with the weights of a folder. Raises InputError when it can't be had."""
    tokenizer = load_tokenizer(folder, trust_remote_code=choice.trust_remote_code)
    eos = eos_token_ids(folder, tokenizer)
    if choice.kind == "service":
        with StandingService.found(choice, eos) as service:
            yield service
        return
    devices.reset_peak()
    engine = _colocated(choice, folder) if choice.kind == "colocated" else _transformers(choice, folder, tokenizer, eos)
    try:
        yield LocalSubject(engine, eos)
    finally:
        engine.close()


def _colocated(choice: EngineChoice, folder: Path) -> LocalRolloutEngine:
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.rollout.platform import engine_kind

    platform = engine_kind()
    return ColocatedEngine(
        EngineSettings(
            str(folder),
            choice.dtype or usual_dtype(),
            max_model_len=choice.max_model_len,
            kv_cache_bytes=_KV_CACHE_BYTES[platform],
            enforce_eager=platform != "cuda",
            trust_remote_code=choice.trust_remote_code,
        )
    )


def _transformers(choice: EngineChoice, folder: Path, tokenizer: Any, eos: tuple[int, ...]) -> LocalRolloutEngine:
    from ascent.rollout.engines.transformers import TransformersEngine
    from ascent.training.sampling_check import load_policy

    model = load_policy(folder, choice.dtype or usual_dtype(), trust_remote_code=choice.trust_remote_code).eval()
    return TransformersEngine(
        lambda: contextlib.nullcontext(model),
        eos_token_ids=eos,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        max_model_len=choice.max_model_len,
        with_logps=True,
    )
