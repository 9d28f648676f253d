"""The search against engines whose best is known, in a time of their own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tuning.standin import BASE, TOKENS, Speed, StandIn, cpu_space, smooth

from ascent.errors import InputError
from ascent.tuning.known import SHORT, WHOLE
from ascent.tuning.ledger import Ledger
from ascent.tuning.probe import Measured, TrialError
from ascent.tuning.result import result
from ascent.tuning.search import Search
from ascent.tuning.space import Point, Space

NOISE = (0.02, -0.02, 0.01, -0.03, 0.03, 0.0, -0.01)


def search(folder: Path, engines: StandIn, budget: float, space: Space | None = None) -> Search:
    """One that is ready to run, with its ledger in the folder."""
    space = space or cpu_space()
    return Search(space, engines, Ledger(folder / "ledger.jsonl", {"of": "test"}), budget, clock=lambda: engines.now)


def share_of_best(found: Search, speed: Speed) -> float:
    """The speed of what was found over that of the best there is."""
    best = found.known.best()
    assert best is not None
    return speed(best) / max(map(speed, found.space.points))


def drawn(seed: int) -> Speed:
    """A surface of its own: each value of each setting has a factor, and pairs of values have one of their own."""

    def factor(*names: object, width: float) -> float:
        return math.exp(random.Random(repr((seed, *names))).gauss(0, width))

    def speed(point: Point) -> float:
        values = [(name, getattr(point, name)) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")]
        values += [(name, getattr(point, name)) for name in ("prefix_caching", "enforce_eager", "threads", "binding")]
        found = 1000.0
        for place, one in enumerate(values):
            found *= factor(one, width=0.2)
            for other in values[place + 1 :]:
                found *= factor(one, other, width=0.02)
        return found

    return speed


def test_the_best_is_found_in_a_small_part_of_the_time_of_all(tmp_path: Path) -> None:
    engines = StandIn(noise=NOISE)
    found = search(tmp_path, engines, 900)
    found.run()
    assert share_of_best(found, smooth) > 0.97
    assert engines.now <= 900 * 1.05
    everything = len(found.space.points) * (engines.start_seconds + TOKENS / 400)
    assert engines.now < everything / 40


def test_surfaces_that_it_was_not_made_for(tmp_path: Path) -> None:
    shares = []
    for seed in range(4):
        engines = StandIn(drawn(seed), noise=NOISE, start_seconds=4.0)
        (tmp_path / str(seed)).mkdir()
        found = search(tmp_path / str(seed), engines, 500)
        found.run()
        shares.append(share_of_best(found, engines.speed))
        assert engines.now < 550
    assert min(shares) > 0.8, shares
    assert sum(shares) / len(shares) > 0.93, shares


def test_what_is_cheap_comes_first_and_engines_are_kept(tmp_path: Path) -> None:
    engines = StandIn()
    search(tmp_path, engines, 600).run()
    assert len(engines.opened) < len(engines.probed) / 2


def test_when_nothing_matters_it_ends_early_and_keeps_what_is_configured(tmp_path: Path) -> None:
    engines = StandIn(lambda point: 500.0, noise=(0.001, -0.001, 0.002))
    found = search(tmp_path, engines, 10_000)
    found.run()
    told = result(found, "a workload")
    assert engines.now < 5_000
    assert told.best == BASE
    assert all("budget" not in each.why for each in told.left_out)


def test_an_interval_holds_the_true_speed(tmp_path: Path) -> None:
    engines = StandIn(noise=NOISE)
    found = search(tmp_path, engines, 900)
    found.run()
    told = result(found, "a workload")
    best = next(row.speed for row in told.rows if row.point == told.best)
    assert best is not None
    assert best.exact
    assert best.probes >= 3
    assert best.low is not None
    assert best.high is not None
    assert best.low < smooth(told.best) < best.high


def test_the_finalists_have_engines_of_just_their_settings(tmp_path: Path) -> None:
    engines = StandIn()
    found = search(tmp_path, engines, 600)
    found.run()
    best = found.known.best()
    assert best in engines.opened
    assert BASE in engines.opened
    assert all(tried.exact for tried in found.known.whole(BASE))


def breaking(bad: Callable[[Point], bool], why: str = "crash") -> Callable[[Point], TrialError | None]:
    """Engines of some points fail at their start."""
    return lambda point: TrialError(why, "what the log says") if bad(point) else None  # type: ignore[arg-type]


def test_failures_are_answers(tmp_path: Path) -> None:
    engines = StandIn(breaks=breaking(lambda point: point.block_size == 32, "memory"))
    found = search(tmp_path, engines, 900)
    found.run()
    best = found.known.best()
    assert best is not None
    assert best.block_size != 32
    assert smooth(best) > 0.9 * max(smooth(point) for point in found.space.points if point.block_size != 32)
    failed = [point for point in engines.opened if point.block_size == 32]
    assert 1 <= len(failed) <= 5  # what failed makes its like unlikely
    told = result(found, "a workload")
    assert {why for _, why, _ in told.failed} == {"memory"}


def test_configured_settings_that_fail(tmp_path: Path) -> None:
    engines = StandIn(breaks=breaking(lambda point: point.prefix_caching and point.enforce_eager))
    found = search(tmp_path, engines, 900)
    found.run()
    told = result(found, "a workload")
    assert BASE in found.known.failed()
    assert told.best != BASE
    assert told.best in engines.opened


def test_a_large_engine_that_fails_says_nothing_of_smaller_ones(tmp_path: Path) -> None:
    engines = StandIn(breaks=breaking(lambda point: point.max_num_batched_tokens > 4096, "memory"))
    found = search(tmp_path, engines, 900)
    found.run()
    assert BASE not in found.known.failed()
    assert all(point.max_num_batched_tokens > 4096 for point in found.known.failed())
    assert share_of_best(found, lambda point: smooth(point) if point.max_num_batched_tokens < 8192 else 0.0) > 0.8


def test_nothing_starts(tmp_path: Path) -> None:
    engines = StandIn(breaks=breaking(lambda point: True))
    with pytest.raises(InputError, match=r"no engine could be measured, with 4 settings(.|\n)*what the log says"):
        search(tmp_path, engines, 900).run()
    assert len(engines.opened) == 4


@pytest.mark.parametrize("budget", [2, 11, 14])
def test_a_budget_that_is_too_small_for_one_probe(tmp_path: Path, budget: float) -> None:
    engines = StandIn(lambda point: 50.0)
    with pytest.raises(InputError, match="too small for one probe"):
        search(tmp_path, engines, budget).run()


def test_a_small_budget_still_gives_an_answer(tmp_path: Path) -> None:
    engines = StandIn()
    found = search(tmp_path, engines, 45)
    found.run()
    told = result(found, "a workload")
    assert told.rows
    assert any("budget" in each.why for each in told.left_out)
    assert engines.now < 80


class KilledError(Exception):
    """In place of the kill."""


class Killed(StandIn):
    """Ends in the middle of a probe."""

    kill_at = 10**9

    def probe(self, point: Point, share: float, until: float | None) -> Measured:
        if len(self.probed) >= self.kill_at:
            raise KilledError
        return super().probe(point, share, until)


@pytest.mark.parametrize("after", [1, 3, 12])
def test_a_search_that_was_killed_goes_on(tmp_path: Path, after: int) -> None:
    engines = Killed()
    engines.kill_at = after
    with pytest.raises(KilledError):
        search(tmp_path, engines, 900).run()
    with (tmp_path / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"point": {"max_num')  # the line that it was writing
    before = Ledger(tmp_path / "ledger.jsonl", {"of": "test"}).tried
    again = StandIn()
    found = search(tmp_path, again, 900)
    found.run()
    assert found.ledger.tried[: len(before)] == before
    short = [(each.point, each.share) for each in found.ledger.tried if not each.exact]
    assert len(short) == len(set(short))  # nothing was measured twice
    assert share_of_best(found, smooth) > 0.97
    assert Ledger(tmp_path / "ledger.jsonl", {"of": "test"}).tried == found.ledger.tried


def test_a_search_that_has_ended_measures_nothing_again(tmp_path: Path) -> None:
    first = StandIn()
    found = search(tmp_path, first, 600)
    found.run()
    again = StandIn()
    repeated = search(tmp_path, again, 600)
    repeated.run()
    assert len(again.probed) <= 2
    assert repeated.known.best() == found.known.best()


def test_a_ledger_of_something_else_is_refused(tmp_path: Path) -> None:
    search(tmp_path, StandIn(), 100)
    with pytest.raises(InputError, match="is of another search"):
        Ledger(tmp_path / "ledger.jsonl", {"of": "another model"})


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("not JSON\n")
    with pytest.raises(InputError, match="can't be read"):
        Ledger(tmp_path / "ledger.jsonl", {})


def test_a_slow_setting_is_broken_off_and_not_taken_for_fast(tmp_path: Path) -> None:
    engines = StandIn(lambda point: 400.0 if point.max_num_seqs > 16 else 40.0)
    found = search(tmp_path, engines, 800)
    found.run()
    cut = [each for each in found.ledger.tried if each.cut]
    assert cut
    assert all((each.tokens_per_second or 0) < 300 for each in cut)
    assert share_of_best(found, engines.speed) == 1.0


def test_unknown_settings_are_told_with_their_reason(tmp_path: Path) -> None:
    found = search(tmp_path, StandIn(noise=NOISE), 200)
    found.run()
    told = result(found, "a workload")
    assert told.near
    assert all(each.at_most > 0 for each in told.near)
    tried = {each.point for each in found.ledger.tried}
    assert len(tried) + sum(each.points for each in told.left_out) == len(found.space.points)
    assert {each.share for each in found.ledger.tried} <= {SHORT, WHOLE}
    assert told.to_json()["could_be_better_count"] == told.nearly
