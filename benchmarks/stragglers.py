"""What is saved by closing a generation without its stragglers, which go on in the next one?

    python benchmarks/stragglers.py [WORKLOAD] [--factor 1.5] [--blocks 6] [--steps 6]

One trainer of `benchmarks/step.py`'s workload (default: ragged, completions of 65 tokens on average and up to 512) with
vLLM in its process. Blocks of steps alternate between closing generations early and waiting for all groups, A B A B;
the first steps of a block, which end what the other way began, are not counted. Times are by tokens that were sampled,
since none is lost either way; reading a prompt again for a completion that goes on is in the time, not in the tokens.

Prints, as geometric means over pairs of blocks with their 95 % intervals, how many times longer sampling and the whole
step take when all groups are waited for, and how much longer than the bound sampling takes either way: all tokens at
the speed that the engine has while at least three in four of a generation's completions are being sampled; and how
many steps the engine makes, whatever else the machine does. Refuses to measure on a busy machine, and tells how much of
it others used.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepping import machine
from stepping.workloads import WORKLOADS, Workload, free_reward, make_policy, make_prompts
from unrecorded import Unrecorded

from ascent.bench.training.ratio import ratio
from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_SETTLE = 2  # steps of a block that are not counted


@dataclass(slots=True)
class Block:
    """The counted steps of one way: seconds of sampling and of whole steps, tokens sampled, and the engine's steps."""

    closing: bool
    generate: float = 0.0
    step: float = 0.0
    tokens: int = 0
    passes: int = 0
    others: float = 0.0  # cores that others used


@dataclass
class Watch:
    """Stands between the sampler and its engine: counts tokens and the engine's steps, and while `counting` how long
    those take in which at least `many` completions are sampled."""

    engine: Any
    many: int
    counting: bool = False
    tokens: int = 0
    passes: int = 0
    seconds_full: float = 0.0
    tokens_full: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def poll(self) -> Any:
        running, began = self.engine.unfinished(), time.perf_counter()
        found = self.engine.poll()
        self.passes += 1
        if self.counting and running >= self.many:
            self.seconds_full += time.perf_counter() - began
            self.tokens_full += running
        return self._count(found)

    def abort(self) -> Any:
        return self._count(self.engine.abort())

    def _count(self, completions: Sequence[Any]) -> Any:
        self.tokens += sum(len(each.token_ids) for each in completions)
        return completions


@dataclass
class Alternating(Unrecorded):
    """A recorder that adds up blocks, and changes the way after each."""

    steps: int
    trainer: Any = None
    watch: Any = None
    blocks: list[Block] = field(default_factory=list)
    _settings: Any = None
    _done: int = 0
    _before: Any = None

    def begin(self) -> None:
        """Once the trainer is there."""
        self._settings = self.trainer._refill._settings
        self._turn(closing=True)

    def step(self, record: Any) -> None:
        block = self.blocks[-1]
        self._done += 1
        if self._done > _SETTLE:
            block.generate += record.times.generate
            block.step += record.times.step
            block.tokens += self.watch.tokens
            block.passes += self.watch.passes
        elif self._done == _SETTLE:
            self._before = machine.usage()
        self.watch.tokens = self.watch.passes = 0
        self.watch.counting = self._done >= _SETTLE
        if self._done == _SETTLE + self.steps:
            block.others = machine.usage().others_since(self._before)
            self._turn(closing=not block.closing)

    def _turn(self, *, closing: bool) -> None:
        self._done, self.watch.counting = 0, False
        self.blocks.append(Block(closing))
        other = replace(self._settings, closing=None, at_once=0, most=self._settings.needed)
        self.trainer._refill._settings = self._settings if closing else other


def run(workload: Workload, factor: float, pairs: int, steps: int, folder: Path) -> Alternating:
    """Train `pairs` blocks of each way."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    from ascent import GRPOConfig, GRPOTrainer
    from ascent.rollout.engine import EngineSettings

    policy = make_policy(workload, folder / "policy")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(policy)
    recorder = Alternating(steps)
    settings: dict[str, Any] = {**workload.batches, "oversample_factor": factor}
    trainer: Any = GRPOTrainer(
        str(policy),
        free_reward(workload),
        GRPOConfig(
            str(folder / "out"),
            **settings,
            max_steps=2 * pairs * (_SETTLE + steps),
            learning_rate=1e-6,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_vllm=True,
            vllm_mode="colocate",
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in make_prompts(workload, tokenizer)]),
        processing_class=tokenizer,
        engine=EngineSettings(
            str(policy),
            "float32",
            workload.context,
            max_num_seqs=int(factor * workload.samples),
            enforce_eager=False,
            kv_cache_bytes=2**29,
        ),
        recorder=recorder,
        verify=False,
    )
    recorder.trainer = trainer
    recorder.watch = trainer._sampler._engine = Watch(trainer.engine, many=3 * workload.samples // 4)
    recorder.begin()
    trainer.train()
    trainer.engine.close()
    return recorder


def report(found: Alternating) -> list[str]:
    """What was found, line by line."""
    blocks = [each for each in found.blocks if each.tokens]
    pairs = [(each, other) for each, other in zip(blocks[::2], blocks[1::2], strict=False)]
    bound = found.watch.seconds_full / found.watch.tokens_full
    lines = [
        f"{len(pairs)} pairs of blocks; others used up to {max(each.others for each in blocks):.2f} cores",
        "waiting for all groups takes longer than closing early, times: sampling "
        f"{ratio([(b.generate / b.tokens) / (a.generate / a.tokens) for a, b in pairs])}, whole step "
        f"{ratio([(b.step / b.tokens) / (a.step / a.tokens) for a, b in pairs])}",
    ]
    for place, way in enumerate(("closed early", "all awaited")):
        own = [pair[place] for pair in pairs]
        milliseconds = sum(each.generate for each in own) / sum(each.tokens for each in own) * 1e3
        passes = sum(each.passes for each in own) / sum(each.tokens for each in own) * 1e3
        over = ratio([each.generate / each.tokens / bound for each in own])
        lines.append(
            f"{way}: {passes:.1f} steps of the engine for 1000 tokens; {milliseconds:.3f} ms a token, {over} times the "
            f"bound ({bound * 1e3:.3f} ms)"
        )
    return lines


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="?", default="ragged", choices=sorted(WORKLOADS))
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--blocks", type=int, default=6, help="of each way")
    parser.add_argument("--steps", type=int, default=6, help="that are counted of a block")
    args = parser.parse_args()
    if (why := machine.busy()) is not None:
        raise SystemExit(f"nothing can be measured now: {why}")
    quieten_transformers()
    with tempfile.TemporaryDirectory() as folder:
        found = run(WORKLOADS[args.workload], args.factor, args.blocks, args.steps, Path(folder))
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
