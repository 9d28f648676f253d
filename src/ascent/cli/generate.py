"""`ascent generate`: sample completions, the inference check before training."""

from __future__ import annotations

import argparse
import json
import sys

from ascent.cli.verb import EXIT_GOOD, Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "generate", _generate, "sample completions: the inference check before training")
    verb.add_argument("model", help="a hub id or a folder")
    verb.add_argument("--prompt", action="append", help="may be given several times")
    verb.add_argument("-n", type=int, default=2, help="completions of each prompt (default: 2)")
    verb.add_argument("--max-tokens", type=int, default=64, help="longest completion (default: 64)")
    verb.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    verb.add_argument("--seed", type=int, default=0, help="default: 0")
    verb.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on CPU, else bfloat16"
    )
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _generate(args: argparse.Namespace) -> int:
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(debug=args.debug)
    quieten_transformers(debug=args.debug)
    from ascent.training.sampling_check import check_sampling

    if args.n < 1 or args.max_tokens < 1 or args.temperature < 0:
        raise InputError("-n and --max-tokens must be at least 1, and --temperature at least 0")
    check = check_sampling(
        args.model,
        args.prompt or ["Write a Python function that returns the sum of two numbers."],
        n=args.n,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        dtype=args.dtype,
    )
    print(check.to_text(), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(check.to_json()))
    return EXIT_GOOD
