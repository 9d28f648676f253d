"""What does it save to compute a group's prompt once?

    python benchmarks/shared_prompt.py [--prompt 800] [--completion 4-32] [--group 8] [--groups 2] [--rounds 5]

Times TRL's pass and each way of Ascent's over the same batch of random tokens, forward and backward, in turn, on a
random Llama. Prints medians, the ratio to TRL's pass and the tokens computed; with --json, one object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ascent.host.process import quieten_transformers, set_up_process

if TYPE_CHECKING:
    import torch

WAYS = ("trl", "off", "rows", "cache", "auto")


@dataclass(frozen=True, slots=True)
class Workload:
    """`groups` prompts of `prompt` tokens with `group` completions each, of `shortest` to `longest` tokens."""

    prompt: int
    shortest: int
    longest: int
    group: int
    groups: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each round, and the tokens that a round computed, padding included."""

    seconds: tuple[float, ...]
    tokens: int

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.seconds)


def small_llama(hidden: int = 256, layers: int = 6, vocabulary: int = 512) -> torch.nn.Module:
    """A random Llama (5 million parameters by default) with TRL's fused head, on the device that trains."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    from ascent import devices

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(devices.current())
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def batch_of(workload: Workload, vocabulary: int, device: torch.device, seed: int = 0) -> tuple[Any, Any, int]:
    """`input_ids` and `attention_mask` as TRL pads them, and the width of the completions."""
    import torch

    chance = random.Random(seed)
    lengths = [chance.randint(workload.shortest, workload.longest) for _ in range(workload.groups * workload.group)]
    width = max(lengths)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (len(lengths), workload.prompt + width), generator=generator)
    ids[:, : workload.prompt] = ids[:: workload.group, : workload.prompt].repeat_interleave(workload.group, 0)
    columns = torch.arange(workload.prompt + width)
    mask = (columns < workload.prompt + torch.tensor(lengths)[:, None]).long()
    return (ids * mask).to(device), mask.to(device), width


def trl_pass(model: Any, ids: Any, mask: Any, width: int, batch_size: int | None, compute_entropy: bool) -> Any:
    """TRL's own, out of its trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=False))
    return GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, model, ids, mask, width, batch_size=batch_size, compute_entropy=compute_entropy
    )[:2]


def measure(
    model: torch.nn.Module,
    batch: tuple[Any, Any, int],
    ways: tuple[str, ...] = WAYS,
    rounds: int = 5,
    *,
    backward: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Mapping[str, Measured]:
    """Each way in turn, `rounds` times after one to warm up."""
    import torch

    from ascent import devices
    from ascent.training.batches.passes.packed_forward import PackedForward

    passes = {way: PackedForward(trl_pass, shared_prompt="off" if way == "trl" else way) for way in ways}  # type: ignore[arg-type]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    tokens = dict.fromkeys(ways, batch[0].numel())
    for turn in range(rounds + 1):
        for way, packed in passes.items():
            model.zero_grad()
            devices.synchronize()
            started = clock()
            with torch.set_grad_enabled(backward):
                found = trl_pass(model, *batch, None, True) if way == "trl" else packed.logps(model, *batch, True)
                if backward:
                    found[0].sum().backward()
            devices.synchronize()
            if turn:
                seconds[way].append(clock() - started)
            for work in packed.take_works():
                tokens[way] = work.computed_tokens
    return {way: Measured(tuple(seconds[way]), tokens[way]) for way in ways}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", type=int, default=800)
    parser.add_argument("--completion", default="4-32", help="tokens, from-to")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="of this process, for a machine that others use too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    set_up_process()
    quieten_transformers()
    from ascent import devices

    shortest, longest = (int(part) for part in args.completion.split("-"))
    workload = Workload(args.prompt, shortest, longest, args.group, args.groups)
    model = small_llama(args.hidden, args.layers)
    found = measure(
        model,
        batch_of(workload, 512, devices.current()),
        rounds=args.rounds,
        backward=not args.no_backward,
        clock=time.process_time if args.cpu_time else time.perf_counter,
    )
    if args.json:
        ways = {way: asdict(measured) for way, measured in found.items()}
        print(json.dumps({"schema": "ascent.shared_prompt/1", "workload": asdict(workload), "ways": ways}))
        return
    for way, measured in found.items():
        ratio = found["trl"].median / measured.median
        print(f"{way:6} {measured.median:8.3f} s  {ratio:5.2f} times TRL's  {measured.tokens:8} tokens")


if __name__ == "__main__":
    main()
