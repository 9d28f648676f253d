"""How much faster than static batches is dynamic batching, and tuned; and how near is it to what can't be beaten?

    python benchmarks/bench.py                    # about a quarter of an hour on two quiet cores
    python benchmarks/bench.py --tiny --busy-ok   # to try the program: nothing is kept
    python benchmarks/bench.py --record           # make the workload anew (benching/ragged.json)

A random Llama of five million parameters samples what a training of it sampled: 218 completions of 32 prompts, 8 to 256
tokens, kept with N = 8 in benching/ragged.json before anything was measured. Static: batches of N that wait for their
last. Dynamic: all submitted at once, N at a time, default settings. Tuned: what `ascent tune` finds in five minutes
with the same completions, free in all settings. The bound, from the lengths L_i and the cost of a step as it is
measured in the same engine, c(b) seconds with b sequences, and p seconds more for each token of a prompt that is
computed:

    max(sum of L_i * min over b <= N of c(b) / b,  longest L_i * c(1))  +  p * tokens of prompts

Ends with 0 when dynamic takes at most 1.1 times the bound and tuned is at least 1.3 times as fast as dynamic. The
figures are kept in benchmarks/results/bench.json, unless others used the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from benching.recording import CONFIG, LENGTHS, policy, record, recorded
from stepping import machine
from stepping.results import code

from ascent.bench.command import Asked, bench
from ascent.bench.figures import Bench
from ascent.bench.picture import svg
from ascent.bench.report import to_text
from ascent.errors import InputError

_RESULT = Path(__file__).resolve().parent / "results" / "bench.json"
# Times static batching, as it is told of Ascent cards, without lengths and N: to be read beside ours, not compared.
_FIELD = {"dynamic": 2.3, "tuned": 3.06}
_MOST_OF_BOUND, _LEAST_TUNED = 1.1, 1.3


def main() -> int:
    """Measure, tell, and keep."""
    args = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.record:
            record(Path(folder))
            return 0
        if not args.busy_ok and (who := machine.busy()):
            print(
                f"this machine is busy, so nothing can be measured: {who}. --busy-ok measures anyhow", file=sys.stderr
            )
            return 1
        before = machine.usage()
        try:
            found = _measure(args, Path(folder))
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        others = machine.usage().others_since(before)
    print(to_text(found))
    good = _tell(found)
    quiet = others <= machine.TOLERATED
    print(f"others used {others:.2f} cores meanwhile")
    if quiet and not args.tiny:
        _RESULT.write_text(json.dumps(_kept(found), indent=1) + "\n", encoding="utf-8")
        print(f"kept in {_RESULT}")
    if args.svg is not None:
        args.svg.write_text(svg(found), encoding="utf-8")
    return 0 if good and quiet else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each stage (default: 5)")
    parser.add_argument(
        "--tune", type=float, default=300.0, metavar="SECONDS", help="that the search has (default: 300)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the figures as a picture")
    parser.add_argument("--tiny", action="store_true", help="an eighth of the lengths, once: to try the program")
    parser.add_argument("--busy-ok", action="store_true", help="measure although others use the machine")
    parser.add_argument("--record", action="store_true", help="train, and write the workload from it")
    return parser


def _measure(args: argparse.Namespace, folder: Path) -> Bench:
    workload, rows = recorded()
    lengths = LENGTHS
    if args.tiny:
        lengths = folder / "shortened.json"
        workload.shortened(1 / 8).write(lengths)
    asked = Asked(
        what=str(CONFIG),
        overrides=(f"model.path={policy(folder)}",),
        workload=lengths,
        tune_seconds=args.tune,
        rows=rows,
        repeats=args.repeat,
    )
    if args.tiny:
        asked = dataclasses.replace(asked, repeats=1)
    return bench(asked, watts=None, say=lambda text: print(text, file=sys.stderr, flush=True))


def _tell(found: Bench) -> bool:
    """In sentences: the ratios beside the field's, and whether both aims are met."""
    for stage, told in _FIELD.items():
        times = found.times(stage, "static")
        here = "not measured" if times is None else f"{times:.2f} times static"
        print(f"{stage}: {here} here; {told} times are told of Ascent cards, with lengths and N that aren't known")
    tuned, near, dynamic = found.times("tuned", "dynamic"), found.of_the_bound, found.measured("dynamic")
    if tuned is None or near is None or dynamic is None:
        return False
    of_bound = dynamic.seconds / near.bound.seconds
    print(f"dynamic takes {of_bound:.3f} times the bound (aim: at most {_MOST_OF_BOUND})")
    print(f"tuned is {tuned:.2f} times as fast as dynamic (aim: at least {_LEAST_TUNED})")
    return of_bound <= _MOST_OF_BOUND and tuned >= _LEAST_TUNED


def _kept(found: Bench) -> dict[str, Any]:
    ratios = {
        stage: {"times_static": found.times(stage, "static"), "field": _FIELD.get(stage)}
        for stage in ("padded", "dynamic", "batching", "memory-layout", "tuned")
    }
    return {
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "code": code(),
        "machine": machine.describe(),
        "ratios": {**ratios, "tuned_over_dynamic": found.times("tuned", "dynamic")},
        "found": _rounded({**found.to_json(), "model": "a random Llama of 5 million parameters"}),
    }


def _rounded(value: Any) -> Any:
    """Floats with six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
