"""What does scoring completions while others are still being sampled save?

    python benchmarks/streamed_rewards.py [MODEL] [--tasks builtin] [--groups 16] [--tokens 32] [--rounds 6]

One engine and one sandbox. Rounds alternate between scoring each completion when it ends and scoring all after the last
token; both sample the same completions. Prints the medians of a generation's time and of its exposed reward time (what
is waited for after the last token), and their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()


def generation(engine: Any, reward: Any, tasks: Any, requests: Any, tokenizer: Any, *, streamed: bool) -> Any:
    """(seconds in all, exposed reward seconds) of one generation."""
    started = time.perf_counter()
    engine.submit(requests)
    texts: list[str] = []
    ids: list[str] = []
    while engine.unfinished():
        for completion in engine.poll():
            task = tasks[int(completion.group_id) % len(tasks)]
            text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            texts.append(text)
            ids.append(task.id)
            if streamed:
                reward.start({"task_id": task.id}, text)
    sampled = time.perf_counter()
    reward(texts, ids)
    ended = time.perf_counter()
    return ended - started, ended - sampled


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="builtin:starter")
    parser.add_argument("--tasks", default="builtin")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    quieten_transformers()
    from ascent.models.folder import load_tokenizer, model_folder
    from ascent.rewards.code import CodeReward
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.engines.colocated import ColocatedEngine
    from ascent.sandbox import Sandbox
    from ascent.tasks.loading import load_tasks
    from ascent.tasks.prompts import with_prompt
    from ascent.types import RolloutRequest, Sampling

    folder = model_folder(args.model)
    tokenizer = load_tokenizer(folder)
    tasks = [with_prompt(task, chat=False) for task in load_tasks(args.tasks).tasks]
    prompts = [tuple(tokenizer(str(task.prompt))["input_ids"]) for task in tasks]
    longest = max(map(len, prompts)) + args.tokens
    sequences = 8 * args.groups
    engine = ColocatedEngine(EngineSettings(str(folder), "float32", longest, sequences, kv_cache_bytes=512 * 2**20))
    sampling = Sampling(args.tokens, stop_token_ids=(tokenizer.eos_token_id,))
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with Sandbox() as sandbox:
        reward = CodeReward(tasks, sandbox=sandbox)
        for turn in range(args.rounds + 1):
            chosen = range(turn * args.groups, (turn + 1) * args.groups)
            requests = [RolloutRequest(str(n), prompts[n % len(tasks)], 8, sampling, 1000 * n) for n in chosen]
            for streamed in (True, False):
                taken = generation(engine, reward, tasks, requests, tokenizer, streamed=streamed)
                if turn:  # the first round warms up
                    seconds[streamed].append(taken)
        level, slots = sandbox.level, sandbox.slots
    print(f"{sequences} completions a generation; sandbox: {slots} slots, {level}")
    for place, what in enumerate(("whole generation", "exposed reward time")):
        beside, after = (statistics.median(taken[place] for taken in seconds[way]) for way in (True, False))
        print(f"{what}: streamed {beside:.3f} s, after sampling {after:.3f} s; ratio {beside / after:.2f}")


if __name__ == "__main__":
    main()
