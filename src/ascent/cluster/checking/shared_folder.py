"""Is a folder the same one on several machines? Proven by files that nobody could guess, in both directions."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ascent.cluster.checking.comparing import named
from ascent.environment import Finding
from ascent.environment.rules import found
from ascent.errors import InputError

_ASKED, _MOST = "asked", 1000  # the name of the file that nodes read; bytes of one


def answer(folder: Path, node: str) -> str:
    """On a node: what stands in the folder's file, after writing it into a file of the node's own; or why not."""
    try:
        with (folder / _ASKED).open(encoding="ascii") as file:
            nonce = file.read(_MOST)
        (folder / node).write_text(nonce, encoding="ascii")
    except (OSError, ValueError) as error:
        return f"error: {error}"
    return nonce


def check_shared(run: Path, ask: Callable[[Path], Mapping[str, tuple[str, str]]]) -> list[Finding]:
    """A911, of the folder `run` or, where it isn't made yet, of the first folder above it that is. `ask` has every node
    run `answer` in a folder, and gives each node's id and answer by its name for people.

    Raises InputError where this machine can't write into the folder.
    """
    place = next(folder for folder in (run.absolute(), *run.absolute().parents) if folder.is_dir())
    folder, nonce = place / f".ascent-shared-{secrets.token_hex(8)}", secrets.token_hex(16)
    try:
        folder.mkdir()
        (folder / _ASKED).write_text(nonce, encoding="ascii")
    except OSError as error:
        raise InputError(f"{place}: can't be written: {error.strerror}", "Choose another tracking.folder.") from error
    try:
        wrong = {label: _fault(folder, nonce, *said) for label, said in ask(folder).items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = {label: fault for label, fault in wrong.items() if fault}
    if not wrong:
        return [found("A911", "ok", f"{place} is the same folder on every node")]
    what = f"{place} isn't shared with {named(wrong)}"
    return [found("A911", "error", what, evidence=[f"{label}: {fault}" for label, fault in wrong.items()][:3])]


def _fault(folder: Path, nonce: str, node: str, said: str) -> str:
    """What is wrong with a node's answer; empty for the right one."""
    if said != nonce:
        return said.removeprefix("error: ") if said.startswith("error: ") else "it read another file"
    try:
        wrote = (folder / node).read_text(encoding="ascii")
    except (OSError, ValueError):
        return "what it wrote isn't here"
    return "" if wrote == nonce else "what it wrote isn't here"
