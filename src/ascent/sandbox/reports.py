"""What the three `ascent sandbox` commands find, as text for people and as JSON.

Somebody waits for each of them, so their slots aren't more modest than the command itself (`nice=0`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ascent.sandbox.attack import COMPILE, AttackResult, run_attacks
from ascent.sandbox.compilers import find_toolchain
from ascent.sandbox.errors import SandboxError
from ascent.sandbox.hostile import Attack, attacks
from ascent.sandbox.layers import LAYERS, LayerReport, mend_of
from ascent.sandbox.pool import Sandbox
from ascent.sandbox.types import LEVELS, Language, Level, Limits, Program, Test, Verdict

_TRIVIAL: dict[Language, str] = {
    "python": "pass",
    "c": "int main(void) { return 0; }",
    "cpp": "#include <vector>\nint main() { std::vector<int> v(3); return v[0]; }",
    "rust": "fn main() {}",
}


@dataclass(frozen=True, slots=True)
class RunReport:
    """A program's verdict."""

    verdict: Verdict
    tests: Sequence[Test]

    @property
    def good(self) -> bool:
        """All tests passed; without tests, the program is valid."""
        return self.verdict.all_passed if self.tests else self.verdict.compiled

    def to_text(self) -> str:
        """One line a test, then what went wrong first."""
        verdict = self.verdict
        if verdict.infrastructure_error is not None:
            return f"the sandbox failed, which says nothing of the program: {_plain(verdict.infrastructure_error)}"
        lines = [
            f"test {number:<3} {test.kind:<9} {outcome}"
            for number, (test, outcome) in enumerate(zip(self.tests, verdict.outcomes, strict=True), 1)
        ]
        if verdict.error is not None:
            lines.append(f"first error: {_plain(verdict.error)}")
        if verdict.output:
            lines += ["it printed:", *(f"  {line}" for line in _plain(verdict.output).splitlines()[:20])]
        says = f"{verdict.passed} of {len(self.tests)} tests passed" if self.tests else _validity(verdict)
        return "\n".join([*lines, f"{says} ({verdict.seconds:.2f} s, level {verdict.level})"])

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.sandbox.run/1."""
        verdict = self.verdict
        return {
            "schema": "ascent.sandbox.run/1",
            "compiled": verdict.compiled,
            "passed": verdict.passed,
            "tests": len(self.tests),
            "outcomes": [str(outcome) for outcome in verdict.outcomes],
            "error": verdict.error,
            "output": verdict.output,
            "seconds": verdict.seconds,
            "cpu_seconds": verdict.cpu_seconds,
            "peak_bytes": verdict.peak_bytes,
            "level": verdict.level,
            "infrastructure_error": verdict.infrastructure_error,
        }


def _validity(verdict: Verdict) -> str:
    return "valid" if verdict.compiled else "not valid"


def _plain(text: str) -> str:
    """Without control characters: what programs print may be meant for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text.replace("\t", "    "))


def run_program(program: Program, tests: Sequence[Test], require: Level, limits: Limits) -> RunReport:
    """Judge one program in a sandbox of its own. Raises SandboxError."""
    with Sandbox(slots=1, require=require, limits=limits, nice=0) as sandbox:
        return RunReport(sandbox.submit(program, tests).result(), tests)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What confinement and which languages this machine gives."""

    layers: LayerReport
    languages: dict[Language, str | None]  # None: works; else why not

    @property
    def good(self) -> bool:
        """Good enough to train with."""
        return LEVELS.index(self.layers.level) >= LEVELS.index("confined")

    def to_text(self) -> str:
        """Layers, then languages, then what to do."""
        layers = self.layers
        lines = [f"level       {layers.level}{'' if self.good else ': too weak to run programs of a model'}"]
        for layer in LAYERS:
            lines.append(f"{layer:<12}{'active' if layers.active[layer] else 'off: ' + layers.reasons[layer]}")
            if not layers.active[layer]:
                lines.append(f"{'':<12}to enable it: {mend_of(layer)}")
        lines += [f"note        {note}" for note in layers.notes]
        lines += [f"broken      {hole}" for hole in layers.holes]
        lines += [f"{language:<12}{'works' if why is None else why}" for language, why in self.languages.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.sandbox.check/1."""
        layers = self.layers
        return {
            "schema": "ascent.sandbox.check/1",
            "level": layers.level,
            "good": self.good,
            "layers": {
                name: {"active": layers.active[name], "reason": layers.reasons.get(name), "mend": mend_of(name)}
                for name in LAYERS
            },
            "landlock_abi": layers.landlock_abi,
            "user_id": layers.uid,
            "notes": list(layers.notes),
            "holes": list(layers.holes),
            "languages": {language: {"works": why is None, "reason": why} for language, why in self.languages.items()},
        }


def check_machine() -> CheckReport:
    """Open a sandbox with all that this machine gives, and compile something in each language. Raises
    SandboxError."""
    with Sandbox(slots=1, require="none", nice=0) as sandbox:
        languages = {language: _try_language(sandbox, language) for language in get_args(Language)}
        return CheckReport(sandbox.report, languages)


def _try_language(sandbox: Sandbox, language: Language) -> str | None:
    try:
        if language != "python":
            find_toolchain(language)
        verdict = sandbox.submit(Program(_TRIVIAL[language], language), []).result()
    except SandboxError as error:
        return str(error)
    if verdict.compiled:
        return None
    return f"a trivial program can't be compiled: {verdict.infrastructure_error or verdict.error}"


@dataclass(frozen=True, slots=True)
class AttackReport:
    """What the built-in hostile programs got."""

    level: Level
    results: Sequence[AttackResult]
    skipped: Sequence[tuple[Attack, str]]

    @property
    def good(self) -> bool:
        """None got anything."""
        return not any(result.breaches for result in self.results)

    def to_text(self) -> str:
        """One line a kind, and one for each breach."""
        kinds = Counter(result.attack.kind for result in self.results)
        through = Counter(result.attack.kind for result in self.results if result.breaches)
        lines = [
            f"{kind:<22}{count:>4} programs, {through[kind] or 'none'} got through" for kind, count in kinds.items()
        ]
        for result in self.results:
            lines += [f"  {result.attack.kind}, {result.attack.name}: {breach}" for breach in result.breaches]
        lines += [f"  not run: {attack.name} ({why})" for attack, why in self.skipped]
        total = sum(through.values())
        return "\n".join([*lines, f"{total or 'none'} of {len(self.results)} got through at level {self.level}"])

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.sandbox.attack/1."""
        return {
            "schema": "ascent.sandbox.attack/1",
            "level": self.level,
            "good": self.good,
            "attacks": [
                {
                    "name": result.attack.name,
                    "kind": result.attack.kind,
                    "outcomes": [str(outcome) for outcome in result.verdict.outcomes],
                    "error": result.verdict.error,
                    "breaches": list(result.breaches),
                }
                for result in self.results
            ],
            "skipped": [{"name": attack.name, "reason": why} for attack, why in self.skipped],
        }


def attack_sandbox(at_most: Level, kinds: Sequence[str] = ()) -> AttackReport:
    """Run the hostile programs of these kinds (default: all). Raises SandboxError."""
    known = sorted({attack.kind for attack in attacks()})
    for kind in kinds:
        if kind not in known:
            raise SandboxError(f"no attacks of kind {kind!r}; expected one of: {', '.join(known)}")
    chosen: list[Attack] = []
    skipped: list[tuple[Attack, str]] = []
    for attack in attacks():
        if kinds and attack.kind not in kinds:
            continue
        why = _missing_compiler(attack.language)
        if why is None:
            chosen.append(attack)
        else:
            skipped.append((attack, why))
    with Sandbox(slots=1, require="none", at_most=at_most, compile_limits=COMPILE, nice=0) as sandbox:
        return AttackReport(sandbox.level, run_attacks(sandbox, chosen), skipped)


def _missing_compiler(language: Language) -> str | None:
    if language == "python":
        return None
    try:
        find_toolchain(language)
    except SandboxError as error:
        return str(error)
    return None
