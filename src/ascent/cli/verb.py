"""What the verbs share: how one is added to the parser, its exit codes, what it refuses, how it tells a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.environment.preflight import Preflight

EXIT_GOOD, EXIT_FINDING, EXIT_BAD = 0, 1, 2
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_verb(
    verbs: Verbs, name: str, run: Callable[[argparse.Namespace], int], help_line: str
) -> argparse.ArgumentParser:
    """Add a verb to the parser, or an action to a verb: ``run`` gets the read arguments and returns the exit code."""
    verb = verbs.add_parser(name, help=help_line, description=help_line)
    verb.add_argument("--debug", action="store_true", help="show tracebacks")
    verb.set_defaults(verb=run)
    return verb


def refuse_unfit(checked: Preflight, what: str, args: argparse.Namespace) -> None:
    """Tell what the fast checks found; errors stop the verb unless the user insists."""
    print(checked.line, file=sys.stderr)
    if checked.errors and not args.force:
        from ascent.environment import display

        print(display.findings(list(checked.errors)), file=sys.stderr)
        raise InputError(f"this machine can't {what} as it is", "Mend what is listed above, or insist with --force.")


def tell(find: Callable[[], Any], args: argparse.Namespace) -> int:
    """Print the report that ``find`` makes, as text or (``--json``) as JSON; the exit code says whether it is good."""
    from ascent.sandbox.errors import SandboxError

    try:
        report = find()
    except SandboxError as error:
        raise InputError(str(error)) from error
    print(report.to_text(), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(report.to_json()))
    return EXIT_GOOD if report.good else EXIT_FINDING
