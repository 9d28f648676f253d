"""Does the quickstart learn from its rewards? Several seeds, with two controls.

    python benchmarks/quickstart.py --seeds 0 1 2

For each seed (of the starter, of the split into training and held-out tasks, and of the training):

- `rewards`: examples/quickstart.yaml as it is;
- `shuffled`: the same, but every batch's rewards are dealt out to its completions at random;
- `continued`: no rewards; the starter's warm start goes on for as long as the training of `rewards` took.

All are judged on the same held-out tasks with the same sampling seeds. Results are kept in --out, one file a cell, and
cells that are there are not run again. The table goes to standard output and, with --write, between marks in a page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascent.host.machine_share import usable_cores
from ascent.host.process import quieten_transformers, set_up_process
from ascent.rewards.code import CodeReward
from ascent.tracking import run_directory
from ascent.tracking.run_directory import read_json_lines, write_json

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "quickstart.yaml"
VARIANTS = ("rewards", "shuffled", "continued")
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
# Student's t, 97.5 %, by degrees of freedom (number of seeds - 1)
T_975 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class ShuffledReward(CodeReward):
    """CodeReward, but a batch's rewards go to its completions at random: the same rewards, and nothing to learn."""

    _random = random.Random(0)

    def __call__(self, completions: Sequence[Any], task_id: Sequence[str], **columns: Any) -> list[float | None]:
        """See CodeReward. `scores` keep the true verdicts, so that pass rates are shown as they are."""
        rewards = super().__call__(completions, task_id, **columns)
        return self._random.sample(rewards, len(rewards))


def main() -> int:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart-benchmark"))
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {BEGIN} and {END}")
    parser.add_argument("--table-only", action="store_true", help="run nothing; show what is there")
    parser.add_argument("--cell", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        run_cell(args.cell[0], int(args.cell[1]), args.out)
        return 0
    cells = [(variant, seed) for variant in args.variants for seed in args.seeds]
    for variant, seed in () if args.table_only else cells:
        if not result_file(args.out, variant, seed).is_file():
            print(f"{variant}, seed {seed}", file=sys.stderr, flush=True)
            # A process of its own: vLLM keeps some of its state in the process.
            command = [sys.executable, __file__, "--out", str(args.out), "--cell", variant, str(seed)]
            subprocess.run(command, check=True)
    table = to_table(args.out, cells)
    print(table)
    if args.write:
        write_between_marks(args.write, table)
    return 0


def run_cell(variant: str, seed: int, out: Path) -> None:
    """Train and evaluate one variant with one seed; its result is written last."""
    set_up_process()
    quieten_transformers()
    if variant == "continued":
        seconds = json.loads(result_file(out, "rewards", seed).read_text())["training_seconds"]
        model, steps = continue_warm_start(seed, seconds, out / f"continued-{seed}-model")
        # One step at learning rate 0: only its evaluation is of interest.
        still = (f"model.path={model}", "trainer.learning_rate=0.0", "trainer.max_steps=1")
        summary = train(f"continued-{seed}", seed, out, still)
        result = {"after": summary["before"], "steps": steps, "training_seconds": seconds}
    else:
        reward = f"{Path(__file__).stem}:ShuffledReward" if variant == "shuffled" else "code"
        settings = (f"model.path=builtin:starter:{seed}", f"reward.functions=['{reward}']")
        summary = train(f"{variant}-{seed}", seed, out, settings)
        lines = read_json_lines(out / f"{variant}-{seed}" / "metrics.jsonl")
        seconds = sum(line["times"]["step"] for line in lines)
        result = {**summary, "steps": len(lines), "training_seconds": seconds}
    write_json(result_file(out, variant, seed), {**result, "cores": usable_cores(), "load": os.getloadavg()[1]})


def train(name: str, seed: int, out: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """A run of the quickstart; greedy and sampled pass rates on the held-out tasks before and after."""
    from ascent import config
    from ascent.training import run as training

    settings, _ = config.load(CONFIG, [f"tasks.seed={seed}", f"trainer.seed={seed}", *overrides])
    run = run_directory.create(out, name)
    run.config.write_text(settings.to_yaml(), encoding="utf-8")
    result = training.train(settings, run)
    if result.stopped:
        sys.exit(f"{name} was stopped before its end and has no result; remove {run.path} to run it anew")
    return {
        when: {"greedy": evaluation.greedy, "sampled": evaluation.sampled, "tasks": len(evaluation.results)}
        for when, evaluation in (("before", result.before), ("after", result.after))
        if evaluation is not None
    }


def continue_warm_start(seed: int, seconds: float, folder: Path) -> tuple[Path, int]:
    """The starter after `seconds` more of its own supervised training; its folder and the number of steps."""
    from transformers import AutoModelForCausalLM

    from ascent.models.folder import load_tokenizer, model_folder
    from ascent.models.starter.building import Recipe
    from ascent.models.starter.noisy_solutions import examples, training_tasks
    from ascent.models.starter.warm_start import Schedule, warm_start

    start = model_folder(f"builtin:starter:{seed}")
    network, tokenizer = AutoModelForCausalLM.from_pretrained(start), load_tokenizer(start)
    recipe = Recipe(seed)
    noisy = examples(training_tasks(seed), recipe.noise, seed + 1000)  # other draws than those of the start
    # Half the start's learning rate: the whole would first undo what was learnt.
    schedule = Schedule(10**6, recipe.schedule.batch, recipe.schedule.learning_rate / 2)
    steps = warm_start(network, tokenizer, noisy, schedule, seconds=seconds)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, steps


def result_file(out: Path, variant: str, seed: int) -> Path:
    """Where a cell's result is kept."""
    return out / f"{variant}-{seed}.json"


def to_table(out: Path, cells: Sequence[tuple[str, int]]) -> str:
    """Markdown: every seed, then mean and 95 % interval (Student's t) over the seeds."""
    names = {"rewards": "GRPO", "shuffled": "GRPO, rewards shuffled", "continued": "warm start continued"}
    lines = ["| | seed | steps | training | greedy | sampled |", "|---|---|---|---|---|---|"]
    done = [cell for cell in cells if result_file(out, *cell).is_file()]
    results = {cell: json.loads(result_file(out, *cell).read_text(encoding="utf-8")) for cell in done}
    groups = [("before", "starter policy", "rewards")] + [("after", names[v], v) for v in VARIANTS]
    for when, name, variant in groups:
        rows = [(seed, result) for (v, seed), result in results.items() if v == variant]
        for seed, result in rows:
            effort = ("", "") if when == "before" else (str(result["steps"]), f"{result['training_seconds']:.0f} s")
            rates = (f"{result[when][kind]:.1%}" for kind in ("greedy", "sampled"))
            lines.append(f"| {name} | {seed} | {' | '.join((*effort, *rates))} |")
        if len(rows) > 1:
            means = (interval([result[when][kind] for _, result in rows]) for kind in ("greedy", "sampled"))
            lines.append(f"| **{name}** | mean | | | {' | '.join(f'**{mean}**' for mean in means)} |")
    return "\n".join(lines)


def interval(values: Sequence[float]) -> str:
    """Mean and half the width of its 95 % interval; below three values the mean alone, for the interval is all."""
    if len(values) < 3:
        return f"{statistics.mean(values):.1%}"
    half = T_975[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.1%} ± {half:.1%}"


def write_between_marks(page: Path, table: str) -> None:
    """Replace what stands between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    if not tail:
        sys.exit(f"{page}: no {BEGIN} ... {END} in it")
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
