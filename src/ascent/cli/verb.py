"""What the verbs share: how one is added to the parser, its exit codes, what it refuses, how it reads a time, how it
tells a report."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ascent.errors import InputError

if TYPE_CHECKING:
    from ascent.environment.preflight import Preflight

_DURATION, _UNITS = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)"), {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
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


def is_duration(text: str) -> bool:
    """Whether it is a time such as `90s`, `5m` or `1.5h`; a plain number is of seconds."""
    return _DURATION.fullmatch(text) is not None


def duration(text: str) -> float:
    """The seconds of such a time. Raises InputError for what isn't one, and for none at all."""
    found = _DURATION.fullmatch(text)
    seconds = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if seconds <= 0:
        raise InputError(f"{text!r} is no time", "Expected is one such as 90s, 5m or 1.5h.")
    return seconds


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
