"""`ascent check-model`: can this model be trained here?"""

from __future__ import annotations

import argparse
from functools import partial

from ascent.cli.verb import Verbs, add_verb
from ascent.errors import InputError


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "check-model", _check_model, "can this model be trained here?")
    verb.add_argument("model", help="a folder, or a hub id that is in the local cache")
    verb.add_argument("--context", type=int, metavar="TOKENS", help="prompt and completion that must fit")
    verb.add_argument("--static", action="store_true", help="read files only: start no other process")
    verb.add_argument("--no-generate", action="store_true", help="don't load the weights for a short generation")
    verb.add_argument("--all", action="store_true", help="also list what is right")
    verb.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _check_model(args: argparse.Namespace) -> int:
    from ascent.environment import commands
    from ascent.models.folder import base_of_adapter, whole_model

    try:
        return commands.check_model(
            args.model,
            whole=base_of_adapter if args.static else partial(whole_model, fetch=False),
            context=args.context,
            generate=not args.no_generate,
            static_only=args.static,
            everything=args.all,
            as_json=args.json,
        )
    except commands.RefusedError as error:
        raise InputError(str(error), error.mend) from error
