"""What the audit costs: steps with it and without, in turns, in one training that pays for visible tests alone.

    python benchmarks/audit.py [--steps 40] [--engine vllm|transformers] [--output FILE]

The policy is the quickstart's starter, the configuration the quickstart's with `reward.tests: visible`. Every other
step is audited; both kinds are compared by their medians, and by the median of the ratios of neighbours, which a
machine that grows slower doesn't move. Programs that were audited before cost nothing again: the figure is that of a
run, and falls while it repeats itself. `all audited again` forgets what is known before each audited step: the most
that it can cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_WARM_UP = 4  # steps
QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart.yaml"


@dataclass
class Turns:
    """Switches the audit of a reward on and off between steps, and keeps what the steps took."""

    reward: Any
    forget: bool
    audit: Any = None
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    audited: int = 0

    def __post_init__(self) -> None:
        self.audit = self.reward._audit
        assert self.audit is not None, "reward.tests isn't visible"

    def step(self, record: Any) -> None:
        """A step has ended: the next one is of the other kind."""
        with_audit = self.reward._audit is not None
        if record.step > _WARM_UP:
            self.seconds[with_audit].append(record.times.step)
            self.audited += int(record.metrics.get("signals/audits") or 0)
        if self.forget:
            self.audit._kept.clear()
        self.reward._audit = None if with_audit else self.audit


def measure(folder: Path, *, steps: int, engine: str, forget: bool) -> dict[str, Any]:
    """One training; its figures."""
    from ascent import config
    from ascent.tracking import run_directory
    from ascent.training import run as running

    name = "forgetting" if forget else "usual"
    settings, _ = config.load(
        QUICKSTART,
        [
            "reward.tests=visible",
            f"rollout.engine={engine}",
            f"trainer.max_steps={steps + _WARM_UP}",
            "tracking.evaluate=false",
            f"tracking.folder={folder}",
            f"tracking.name={name}",
        ],
    )
    directory = run_directory.create(folder, name)
    directory.config.write_text(settings.to_yaml(), encoding="utf-8")
    with running.prepared(settings, directory) as ready:
        turns = Turns(ready.judge, forget)
        ready.recorder.watchers.append(turns.step)
        ready.trainer.train()
    with_audit, without = turns.seconds[True], turns.seconds[False]
    ratios = [one / other for one, other in zip(with_audit, without, strict=False)]
    return {
        "steps": len(with_audit) + len(without),
        "audited_completions": turns.audited,
        "seconds_with": round(statistics.median(with_audit), 4),
        "seconds_without": round(statistics.median(without), 4),
        "ratio_of_medians": round(statistics.median(with_audit) / statistics.median(without), 4),
        "median_of_ratios": round(statistics.median(ratios), 4),
    }


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    quieten_transformers()
    found: dict[str, Any] = {"engine": args.engine}
    with tempfile.TemporaryDirectory() as folder:
        for forget, name in ((False, "in a run"), (True, "all audited again")):
            found[name] = measure(Path(folder), steps=args.steps, engine=args.engine, forget=forget)
            print(f"{name}: {json.dumps(found[name])}", file=sys.stderr)
    text = json.dumps(found, indent=1) + "\n"
    if args.output is not None:
        args.output.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
