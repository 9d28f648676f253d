"""How long does a training step take, beside TRL's own and beside what can't be left out?

    python benchmarks/step.py --workloads quick ragged long quickstart --rounds 5
    python benchmarks/step.py --workloads long --systems savings
    python benchmarks/step.py --table

Systems, each in a process of its own that does a step when it is told to and sleeps otherwise, so that they take turns
(A B C A B C ...) on the same machine: stock TRL with transformers' generation and with vLLM in its process, and Ascent;
`--systems savings` has Ascent with nothing saved and with each saving alone. All train the same policy on the same
prompts with the same seed, sample count and loss, and vLLM samples with compiled graphs. Workloads: `quick`, `ragged`
and `long` (a random Llama of 5 million parameters, rewards of no cost), the same with `-half` of the groups without
signal, and `quickstart`, which is examples/quickstart.yaml with its sandbox. TRL with transformers has no correction
against the sampler, and so no pass for old log-probabilities.

The bound of a step, from the same rounds:

    sampling (Ascent's engine, this step)
    + seconds a token of TRL's forward and backward pass, measured on a batch without padding, about 4,096 tokens large,
      whose rows have the step's mean lengths of prompt and completion
      * tokens that carry gradient: of each group with signal the prompt once, and its different completions whose
        advantage isn't zero
    + the optimizer's step + the way of the weights to the engine

Nothing is measured while others use the machine. Every round is kept at once in benchmarks/results/step-WORKLOAD.json;
rounds of several runs of the same sources on the same machine add up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stepping import machine
from stepping.results import keeper
from stepping.rounds import BusyError, measure
from stepping.systems import MAIN, SAVINGS, SYSTEMS
from stepping.tables import BEGIN, END, tables, write_between_marks
from stepping.workloads import QUICKSTART, WORKLOADS

_RESULTS = Path(__file__).resolve().parent / "results"
_NAMED = {"main": MAIN, "savings": SAVINGS, "reward": ("ascent", "ascent-free")}


def main() -> int:
    """Measure what is asked for, then print the tables."""
    args = _parser().parse_args()
    if args.worker:
        from stepping.worker import serve

        serve(args.worker[0], args.worker[1], Path(args.worker[2]))
        return 0
    if not args.table and (problem := _measure(args)):
        print(problem, file=sys.stderr)
        return 1
    table = tables(args.results, kept=not args.busy_ok)
    print(table)
    if args.write:
        write_between_marks(args.write, table)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*WORKLOADS, QUICKSTART)
    parser.add_argument("--workloads", nargs="+", choices=known, default=["quick", "ragged", "long", QUICKSTART])
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=(*_NAMED, *SYSTEMS),
        default=["main"],
        help="main: TRL twice, Ascent, and what the bound needs; savings: each alone; reward: the sandbox, and none",
    )
    parser.add_argument("--rounds", type=int, default=5, help="steps of each system that count")
    parser.add_argument("--warm", type=int, default=2, help="steps of each before those")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="begin no round after that long")
    parser.add_argument("--busy-ok", action="store_true", help="measure anyhow; such results are not to be kept")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="measure nothing; show what is there")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the tables between {BEGIN} and {END}")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser


def _measure(args: argparse.Namespace) -> str | None:
    """Why it ended early, None if it didn't."""
    until = time.monotonic() + (args.time_limit or float("inf"))
    systems = _systems(args.systems)
    if not args.busy_ok and (who := machine.busy()):
        return f"this machine is busy, so nothing can be measured: {who}. --busy-ok measures anyhow"
    with tempfile.TemporaryDirectory() as folder:
        for workload in args.workloads:
            try:
                measure(
                    workload,
                    systems,
                    Path(folder),
                    rounds=args.rounds,
                    warm=args.warm,
                    until=until,
                    busy_ok=args.busy_ok,
                    keep=keeper(args.results, workload, kept=not args.busy_ok),
                    tell=lambda text: print(text, file=sys.stderr, flush=True),
                )
            except BusyError as busy:
                return f"{workload}: the machine became busy; the rounds before are kept: {busy}"
    return None


def _systems(asked: Sequence[str]) -> tuple[str, ...]:
    """The systems by name, each once; what measures the dense batch last, for it needs a step's lengths."""
    found = dict.fromkeys(system for name in asked for system in _NAMED.get(name, (name,)))
    return tuple(system for system in SYSTEMS if system in found)


if __name__ == "__main__":
    sys.exit(main())
