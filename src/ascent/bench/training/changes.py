"""Settings that may make a step shorter, each with what it should gain by what was measured. None changes the results
of a training unless `alters` says what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.bench.training.measured import Measured
from ascent.bench.training.trained_tokens import trained_tokens
from ascent.config import RunConfig
from ascent.config.trl_fields import NOTHING_SAVED
from ascent.training.trial.found import Tried

# How many times faster vLLM samples without a seed for each completion (docs/training.md, Seeds).
_SEEDS_COST = (1.05, 1.78)
_CHECKPOINTING = 0.25  # of a pass: forward twice and backward, which costs as much as two, instead of forward once
_OF_GRAPHS = 0.5  # of sampling, at most: what eager mode can cost where the model is small
_TAIL = 0.25  # of sampling, from which on waiting for the last completions is worth a word


@dataclass(frozen=True, slots=True)
class Change:
    """`settings` by key (`section.name`). `least` to `most` seconds of a step should be gained; `alters` says what it
    changes beside the time, "" for nothing that is trained on."""

    settings: Mapping[str, Any]
    why: str
    least: float
    most: float
    alters: str = ""

    @property
    def expected(self) -> float:
        """Seconds of a step: the middle."""
        return (self.least + self.most) / 2

    @property
    def words(self) -> str:
        """As one gives them to a command."""
        return " ".join(f"{key}={_word(value)}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True)
class Situation:
    """What changes are made for: the run's configuration, its mean step, what was sampled, and this machine."""

    config: RunConfig
    found: Measured
    tried: Tried
    cores: int


def changes(here: Situation) -> list[Change]:
    """Those that should gain something, the most first."""
    found = [change for rule in _RULES for change in rule(here) if change.expected > 0]
    return sorted(found, key=lambda change: -change.expected)


def _savings(here: Situation) -> Iterator[Change]:
    """What the update leaves out by default, where it is switched off."""
    given = here.config.trainer
    off = {name: value for name, value in NOTHING_SAVED.items() if name in given and given[name] == value}
    on = {name: value for name, value in _SAVED.items() if name in off}
    if not on:
        return
    now, then = (trained_tokens(here.tried.rows, {**given, **more}) for more in ({}, on))
    passes = here.found.phases["update"] - here.found.optimizer
    gained = passes * max(0.0, 1.0 - then / now) if now else 0.0
    if "skip_old_logps" in on and not given.get("beta"):
        gained += here.found.phases["logps"]
    why = f"a step computes {now:.0f} tokens in its update, of which {then:.0f} are needed"
    yield Change({f"trainer.{name}": value for name, value in on.items()}, why, 0.5 * gained, gained)


def _checkpointing(here: Situation) -> Iterator[Change]:
    setting = "trainer.gradient_checkpointing=false"
    if here.config.trainer.get("gradient_checkpointing", True) and setting in here.tried.found.fits:
        gained = _CHECKPOINTING * (here.found.phases["update"] - here.found.optimizer)
        why = "by the memory's plan the activations fit, so nothing has to be computed twice"
        yield Change({"trainer.gradient_checkpointing": False}, why, 0.6 * gained, gained)


def _offload(here: Situation) -> Iterator[Change]:
    seconds = _mean(here.tried, "memory/offload_seconds")
    if seconds and "memory.offload=none" in here.tried.found.fits:
        why = "by the memory's plan the optimizer's state fits beside the engine, so nothing has to travel"
        yield Change({"memory.offload": "none"}, why, 0.8 * seconds, seconds)


def _graphs(here: Situation) -> Iterator[Change]:
    rollout = here.config.rollout
    eager = rollout.enforce_eager or (rollout.enforce_eager is None and here.tried.found.kind != "cuda")
    if _vllm(here) and eager:
        why = "the engine runs without graphs; with them it starts later and samples faster, small models most"
        yield Change({"rollout.enforce_eager": False}, why, 0.0, _OF_GRAPHS * here.found.phases["generate"])


def _seeds(here: Situation) -> Iterator[Change]:
    if _vllm(here) and here.config.trainer.get("seeded_sampling"):
        least, most = ((1.0 - 1.0 / times) * here.found.phases["generate"] for times in _SEEDS_COST)
        why = "each completion has a seed of its own, for which vLLM draws apart"
        yield Change({"trainer.seeded_sampling": False}, why, least, most, alters="runs no longer repeat")


def _sequences(here: Situation) -> Iterator[Change]:
    at_once, wanted = here.config.rollout.max_num_seqs, round(here.found.samples / here.tried.found.processes)
    if _vllm(here) and at_once is not None and at_once < wanted:
        waves = -(-wanted // at_once)
        why = f"{wanted} completions are sampled {at_once} at once, in about {waves} waves"
        yield Change({"rollout.max_num_seqs": wanted}, why, 0.0, (1.0 - 1.0 / waves) * here.found.phases["generate"])


def _cache(here: Situation) -> Iterator[Change]:
    thrown_out = sum((line.get("engine") or {}).get("preemptions", 0) for line in here.tried.timed)
    if not _vllm(here) or not thrown_out:
        return
    share = min(0.5, thrown_out / max(len(here.tried.timed) * here.found.samples, 1.0))
    memory = here.config.memory
    if here.tried.found.kind == "cpu" or memory.kv_cache_mb is not None:
        setting: dict[str, Any] = {"memory.kv_cache_mb": 2 * (memory.kv_cache_mb or 512)}
    else:
        setting = {"memory.engine_share": round(min(0.95, memory.engine_share + 0.1), 2)}
    why = f"the KV cache is too small: {thrown_out} completions were thrown out of it and computed again"
    yield Change(setting, why, 0.0, share * here.found.phases["generate"])


def _prefixes(here: Situation) -> Iterator[Change]:
    if not _vllm(here) or here.config.rollout.prefix_caching:
        return
    prompts = sum(len(row["prompt_ids"]) for row in here.tried.rows)
    tokens = prompts + sum(len(row["completion_ids"]) for row in here.tried.rows)
    repeated = 1.0 - 1.0 / int(here.config.trainer.get("num_generations", 8))
    why = "each completion of a group has its prompt computed anew"
    gained = repeated * prompts / max(tokens, 1) * here.found.phases["generate"]
    yield Change({"rollout.prefix_caching": True}, why, 0.0, gained)


def _slots(here: Situation) -> Iterator[Change]:
    waited = here.found.phases["reward_exposed"]
    slots = here.config.sandbox.slots or max(1, here.cores // 2)
    if waited and _judged(here) and slots < here.cores:
        why = f"programs are judged {slots} at once on {here.cores} cores, and the step waits for the last of them"
        yield Change({"sandbox.slots": here.cores}, why, 0.0, (1.0 - slots / here.cores) * waited)


def _slow_programs(here: Situation) -> Iterator[Change]:
    """Programs that run into their limit hold a slot for all of it."""
    limit, waited = here.config.sandbox.wall_seconds, here.found.phases["reward_exposed"]
    seconds = sorted(row["sandbox_seconds"] for row in here.tried.rows if row["sandbox_seconds"])
    late = [each for each in seconds if each > 0.5 * limit]
    if not waited or not late or sum(late) < 0.2 * sum(seconds):
        return
    others = seconds[: len(seconds) - len(late)]
    enough = max(1.0, round(4 * others[-1], 1)) if others else limit / 2
    if enough >= limit:
        return
    why = f"{len(late)} of {len(seconds)} programs ran into their limit, the others end within {others[-1]:.1f} s"
    gained = waited * sum(each - enough for each in late) / sum(seconds)
    yield Change({"sandbox.wall_seconds": enough}, why, 0.0, gained, alters="slow programs are ended sooner, and fail")


def _stragglers(here: Situation) -> Iterator[Change]:
    """The last completions of a generation, while the engine has little else to do."""
    seconds = sorted(row["sample_seconds"] for row in here.tried.rows)
    if not _vllm(here) or len(seconds) < 8 or here.config.trainer.get("oversample_factor", 1.0) > 1.0:
        return
    tail = 1.0 - seconds[int(0.8 * len(seconds))] / max(seconds[-1], 1e-9)
    if tail >= _TAIL:
        why = f"the last fifth of the completions takes {tail:.0%} of the sampling"
        alters = "late groups are trained on a generation later"
        gained = tail * here.found.phases["generate"]
        yield Change({"trainer.oversample_factor": 1.25}, why, 0.0, gained, alters=alters)


def _ahead(here: Situation) -> Iterator[Change]:
    rollout = here.config.rollout
    if rollout.mode == "server" and rollout.staleness == 0:
        sampling = here.found.phases["generate"]
        hidden = min(sampling, here.found.step - sampling)
        why = "servers sample while nothing trains, and stand still while something does"
        alters = "completions come from weights that are one generation old"
        yield Change({"rollout.staleness": 1}, why, 0.7 * hidden, hidden, alters=alters)


def _judged(here: Situation) -> bool:
    return any(row["sandbox_seconds"] for row in here.tried.rows)


def _vllm(here: Situation) -> bool:
    return here.config.rollout.engine == "vllm"


def _mean(tried: Tried, name: str) -> float:
    values: Sequence[float] = [line[name] for line in tried.timed if line.get(name) is not None]
    return sum(values) / len(values) if values else 0.0


def _word(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


_SAVED: Mapping[str, Any] = {
    "max_tokens_per_batch": "auto",
    "shared_prompt": "auto",
    "reuse_equal_rows": True,
    "packing": "auto",
    "skip_zero_advantage": True,
    "skip_old_logps": True,
}
_RULES: tuple[Callable[[Situation], Iterator[Change]], ...] = (
    _savings,
    _checkpointing,
    _offload,
    _graphs,
    _seeds,
    _sequences,
    _cache,
    _prefixes,
    _slots,
    _slow_programs,
    _stragglers,
    _ahead,
)
