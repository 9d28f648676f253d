"""No hostile program gets a pass that it didn't earn, gets out, or leaves anything behind."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ascent.host.machine_share import usable_cores
from ascent.sandbox import Level, Limits, Outcome, Program, Sandbox, SandboxError, Verdict
from ascent.sandbox import attack as attacking
from ascent.sandbox.attack import COMPILE, LIMITS, AttackResult, arena, judged_by, run_attacks
from ascent.sandbox.hostile import Attack, attacks, read_attacks
from ascent.sandbox.types import Language

COMPILERS: dict[Language, str] = {"c": "gcc", "cpp": "g++", "rust": "rustc"}
# What differs between levels: where a program may reach, not what its values are worth.
REACHING = ("reaching out", "stealing", "compiling")


def runnable(kinds: Sequence[str] | None = None) -> list[Attack]:
    """Attacks whose compilers are installed."""
    return [
        attack
        for attack in attacks()
        if (attack.language == "python" or shutil.which(COMPILERS[attack.language]))
        and (not kinds or attack.kind in kinds)
    ]


def breached(results: Sequence[AttackResult]) -> dict[str, tuple[str, ...]]:
    return {result.attack.name: result.breaches for result in results if result.breaches}


@contextmanager
def opened(level: Level, without: Sequence[str] = (), slots: int = 1) -> Iterator[Sandbox]:
    require: Level = "none" if without else level
    try:
        sandbox = Sandbox(slots=slots, at_most=level, require=require, without=without, compile_limits=COMPILE, nice=0)
    except SandboxError as error:
        pytest.skip(f"level {level} isn't available here: {error}")
    with sandbox:
        yield sandbox


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(attack.kind for attack in attacks())
    assert len(kinds) == 10
    assert min(kinds.values()) >= 15
    assert sum(kinds.values()) > 230
    names = [attack.name for attack in attacks()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('name = "b"', "two.toml: attack 'b': .*source"),
        ('name = "b"\nsource = "x"\njudge = "stdio"', "two.toml: attack 'b': .*judge"),
        ('name = "b"\nsource = "x"\njudged = "stdout"', "two.toml: attack 'b': unknown judged 'stdout'"),
        ('name = "b"\nsource = "x"\nprelude = "none"', "two.toml: attack 'b': no prelude 'none'; there are start"),
        ('name = "a"\nsource = "x"', "two.toml: attack 'a': the name stands in one.toml already"),
        ('name = "parser"\nsource = "x"', "two.toml: attack 'parser': the name stands in __init__.py already"),
        ('name = "b"\n[more]', "two.toml: expected kind"),
        ("name = b", "two.toml: "),
    ],
)
def test_wrong_entry_is_named(tmp_path: Path, entry: str, said: str) -> None:
    one = 'kind = "k"\n[preludes]\nstart = "s = 1\\n"\n[[attacks]]\nname = "a"\nsource = "a"\n'
    (tmp_path / "one.toml").write_text(one)
    (tmp_path / "two.toml").write_text('kind = "k"\n[[attacks]]\nname = "b"\nprelude = "start"\nsource = "b"\n')
    assert [attack.source for attack in read_attacks(tmp_path)] == ["a", "s = 1\nb"]
    (tmp_path / "two.toml").write_text(f'kind = "k"\n[[attacks]]\n{entry}\n')
    with pytest.raises(ValueError, match=said):
        read_attacks(tmp_path)


def test_folder_without_attacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \*\.toml files"):
        read_attacks(tmp_path)


def test_the_arena_sees_what_honest_power_could_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any wall most of what reaches out succeeds: the traps of the arena work."""
    monkeypatch.setattr(attacking, "LIMITS", LIMITS.stretched(20))  # they must reach their ends
    harmless = (
        "reads a file",
        "UDP",
        "writes to a shared folder",
        "Unix datagrams",
        "overwrites and deletes",
        "TCP",
        "subprocess",
    )
    chosen = [attack for attack in attacks() if attack.name in harmless]
    with opened("none", without=("limits", "user")) as bare:
        assert set(breached(run_attacks(bare, chosen))) == set(harmless)


@pytest.mark.timeout(1800)
def test_nothing_breaches_confined() -> None:
    with opened("confined") as sandbox:
        assert sandbox.level == "confined"
        results = run_attacks(sandbox, runnable())
    assert breached(results) == {}
    # The attacks must have run: most come to an outcome of their own, not all to the same error.
    outcomes = Counter(outcome for result in results for outcome in result.verdict.outcomes)
    assert outcomes[Outcome.PASSED] == 0
    assert len(outcomes) >= 6
    assert all(result.verdict.infrastructure_error is None for result in results)


@pytest.mark.timeout(900)
def test_nothing_breaches_namespaced() -> None:
    with opened("namespaced") as sandbox:
        assert breached(run_attacks(sandbox, runnable(REACHING))) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_of_any_kind_breaches_namespaced() -> None:
    with opened("namespaced") as sandbox:
        assert breached(run_attacks(sandbox, runnable())) == {}


# What each layer alone stops, of the attacks that no other layer stops as well.
STOPPED = {
    "landlock": {
        "reads a file",
        "maps a file",
        "includes a secret",
        "poisons the compile cache",
        "overwrites its own file",
        "writes to a shared folder",
        "overwrites and deletes",
    },
    "seccomp": {
        "UDP",
        "Unix socket",
        "Unix datagrams",
        "ptrace",
        "namespaces",
        "shared memory",
        "keyring",
        "kernel doors",
    },
    "limits": {"memory", "limits of its own"},
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layer", ["limits", "user", "landlock", "seccomp"])
def test_each_layer_taken_away_lets_named_attacks_through(layer: str) -> None:
    with opened("confined", without=[layer]) as sandbox:
        through = breached(run_attacks(sandbox, runnable()))
    assert set(through) >= STOPPED.get(layer, set()), through
    if layer == "user":
        assert through == {}  # Landlock and the filter hold without it
    assert not any(breach.startswith("passed") for breaches in through.values() for breach in breaches)


def verdicts_of(sandbox: Sandbox, chosen: Sequence[Attack], limits: Limits) -> list[Verdict]:
    with arena() as ground:
        jobs = [
            (Program(ground.fill(attack.source), attack.language), judged_by(attack, ground.wanted))
            for attack in chosen
        ]
        return sandbox.run_many(jobs, limits)


def at_a_limit(verdict: Verdict) -> bool:
    """Whether it used much of its time: which limit it meets first then depends on the machine."""
    slow = verdict.cpu_seconds > 0.5 * LIMITS.cpu_seconds
    return slow or Outcome.TIMEOUT in verdict.outcomes or Outcome.MEMORY in verdict.outcomes


def judged_differently(chosen: Sequence[Attack]) -> tuple[dict[str, object], int]:
    """Attacks judged differently alone and when many at once share the cores with threads that spin; and how many
    could be compared by their outcomes. Those at a limit must fail both times."""
    with opened("confined") as alone:
        first = verdicts_of(alone, chosen, LIMITS)
    stop = threading.Event()
    hogs = [threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)]) for _ in range(2)]
    with opened("confined", slots=2 * usable_cores()) as busy:
        for hog in hogs:
            hog.start()
        try:
            second = verdicts_of(busy, chosen, LIMITS)
        finally:
            stop.set()
    pairs = list(zip(chosen, first, second, strict=True))
    assert [one.passed for _, one, _ in pairs] == [two.passed for _, _, two in pairs] == [0] * len(pairs)
    comparable = [pair for pair in pairs if not (at_a_limit(pair[1]) or at_a_limit(pair[2]))]
    different: dict[str, object] = {
        a.name: (one.outcomes, two.outcomes) for a, one, two in comparable if one.outcomes != two.outcomes
    }
    return different, len(comparable)


@pytest.mark.timeout(900)
def test_verdicts_are_the_same_under_load() -> None:
    kinds = ("leaving early", "lying values", "forging the channel")
    different, compared = judged_differently(runnable(kinds))
    assert different == {}
    assert compared > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_verdicts_are_the_same_under_load() -> None:
    different, compared = judged_differently([attack for attack in runnable() if attack.kind != "compiling"])
    assert different == {}
    assert compared > 80
