"""`ascent evaluate`: how well do these weights solve these tasks?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "evaluate", _evaluate, "how well does a model, a run or a checkpoint solve tasks?")
    verb.add_argument(
        "model", help="a hub id, a model's or adapter's folder, a run directory, or one of its checkpoints"
    )
    verb.add_argument("--tasks", metavar="FILE", help="a task file, or builtin (default: what the run held out)")
    verb.add_argument("--samples", type=int, default=10, metavar="N", help="completions of each task (default: 10)")
    verb.add_argument(
        "--k", type=int, nargs="+", metavar="K", help="pass@k to tell (default: 1, 5, 10 up to --samples)"
    )
    verb.add_argument(
        "--greedy", action=argparse.BooleanOptionalAction, default=True, help="also one greedy completion (default)"
    )
    verb.add_argument("--temperature", type=float, metavar="T", help="default: the run's, else 1.0")
    verb.add_argument("--max-tokens", type=int, metavar="N", help="longest completion (default: the run's, else 512)")
    verb.add_argument("--seed", type=int, help="default: the run's, else 42")
    verb.add_argument(
        "--against", metavar="OTHER", help="another model, run or checkpoint to compare with, task by task"
    )
    verb.add_argument("--limit", type=int, metavar="N", help="ask no more than the first N tasks")
    verb.add_argument("--engine", choices=["vllm", "transformers"], default="vllm", help="default: vllm")
    verb.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on CPU, else bfloat16"
    )
    verb.add_argument("--batch", type=int, metavar="N", help="completions at once (default: 64 on CPU, else 1024)")
    verb.add_argument("--packages", nargs="+", default=[], metavar="NAME", help="that programs may import")
    verb.add_argument("--trust-remote-code", action="store_true", help="run the code that the model brings")
    verb.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: runs/evaluate-..., the same for the same call"
    )
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _evaluate(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.training.evaluate.command import evaluate
    from ascent.training.evaluate.plan import Asked

    asked = Asked(
        model=args.model,
        tasks=args.tasks,
        samples=args.samples,
        k=None if args.k is None else tuple(args.k),
        greedy=args.greedy,
        temperature=args.temperature,
        max_tokens=args.max_tokens,
        seed=args.seed,
        engine=args.engine,
        dtype=args.dtype,
        batch=args.batch,
        limit=args.limit,
        packages=tuple(args.packages),
        trust_remote_code=args.trust_remote_code,
        against=args.against,
        out=args.out,
    )
    return tell(lambda: evaluate(asked), args)
