"""What does sampling the next generation while this one trains save?

    python benchmarks/overlap.py [--steps 12] [--prompts 8] [--tokens 64] [--json]

One vLLM server pinned to the first core, the trainer to the second, a random policy; the same training with staleness 0
and with staleness 1, one after the other, in one run. Prints a step's time (median), that of its two phases (sampling;
everything else, measured with staleness 0), and the ratios: with staleness 0 to the sum of the phases, with staleness 1
to the longer of them. Needs two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from unrecorded import Unrecorded

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
os.environ["OMP_NUM_THREADS"] = "1"
WARM_UP = 3


def policy(folder: Path) -> Path:
    """A random policy of a few million parameters, with the starter's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ascent.models.folder import load_tokenizer, model_folder

    tokenizer = load_tokenizer(model_folder("builtin:starter"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Steps(Unrecorded):
    """A Recorder that keeps the times of the steps."""

    def __init__(self) -> None:
        self.times: list[Any] = []

    def step(self, record: Any) -> dict[str, float]:
        """Keep the times of one step."""
        if record.step > WARM_UP:
            self.times.append(record.times)
        return {}


def train(folder: Path, address: Any, staleness: int, args: argparse.Namespace, output: str) -> list[Any]:
    """The times of the steps of one training."""
    from datasets import Dataset
    from transformers import PrinterCallback

    from ascent import GRPOConfig, GRPOTrainer
    from ascent.rollout.engines.served.engine import ServedEngine
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.choice import transport

    delivery = WeightDelivery(transport("shm", "float32", "cpu"), "float32")
    engine = ServedEngine(address, delivery, holder_name="overlap")
    steps = Steps()
    arguments = GRPOConfig(
        output,
        per_device_train_batch_size=8 * args.prompts,
        num_generations=8,
        max_completion_length=args.tokens,
        learning_rate=1e-5,
        max_steps=args.steps + WARM_UP,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="server",
    )
    rows = [{"prompt": f"def f{n}(a, b):"} for n in range(args.prompts * (args.steps + WARM_UP))]
    trainer = GRPOTrainer(
        str(folder),
        lambda completions, **_: [float(len(set(text))) for text in completions],
        arguments,
        train_dataset=Dataset.from_list(rows),
        engine=engine,
        staleness=staleness,
        recorder=steps,
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    finally:
        engine.close()
        delivery.close()
    return steps.times


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=8, help="of a generation; 8 completions each")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this benchmark needs two cores")
    quieten_transformers()
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.in_vllm.plugin import WORKER_EXTENSION
    from ascent.rollout.service.running import running_service
    from ascent.rollout.service.settings import ServiceSettings

    with tempfile.TemporaryDirectory() as scratch:
        folder = policy(Path(scratch) / "policy")
        engine = EngineSettings(str(folder), "float32", 128, 8 * args.prompts, kv_cache_bytes=256 * 2**20)
        settings = ServiceSettings(engine, "cpu", transport="shm", worker_extension=WORKER_EXTENSION)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the affinity below says where
        os.sched_setaffinity(0, {cores[0]})
        with running_service(settings, name=f"overlap-{os.getpid()}", log_folder=Path(scratch)) as address:
            os.sched_setaffinity(0, {cores[1]})
            times = {staleness: train(folder, address, staleness, args, scratch) for staleness in (0, 1)}
    print_result(times, as_json=args.json)


def print_result(times: dict[int, list[Any]], *, as_json: bool) -> None:
    """Medians and ratios."""
    sampling = statistics.median(each.generate for each in times[0])
    training = statistics.median(each.step - each.generate for each in times[0])
    in_turns, overlapped = (statistics.median(each.step for each in times[staleness]) for staleness in (0, 1))
    result = {
        "sampling_seconds": sampling,
        "training_seconds": training,
        "step_seconds": {"staleness 0": in_turns, "staleness 1": overlapped},
        "staleness 0 to the sum": in_turns / (sampling + training),
        "staleness 1 to the longer": overlapped / max(sampling, training),
        "saved": 1 - overlapped / in_turns,
    }
    if as_json:
        print(json.dumps(result))
        return
    print(f"phases with staleness 0: sampling {sampling:.3f} s, the rest {training:.3f} s")
    print(f"a step with staleness 0: {in_turns:.3f} s, {result['staleness 0 to the sum']:.2f} of their sum")
    print(f"a step with staleness 1: {overlapped:.3f} s, {result['staleness 1 to the longer']:.2f} of the longer")


if __name__ == "__main__":
    main()
