"""Which node judges which programs next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from ascent.cluster.judging.batches import Batch, Batches, Waiting
from ascent.cluster.judging.messages import Asked
from ascent.sandbox import Program


def program(name: str = "", *, later: bool = False) -> Waiting:
    return Waiting(Asked(Program(name), "", None, later), (), Future())


def names(batch: Batch | None) -> list[str]:
    return [] if batch is None else [each.asked.program.source for each in batch.programs]


def all_that_fit(batches: Batches) -> list[Batch]:
    return list(iter(batches.next, None))


def filled(count: int, nodes: dict[str, int], *, sharers: int = 1, later: bool = False) -> Batches:
    batches = Batches(sharers)
    for name, slots in nodes.items():
        batches.add(name, slots)
    for number in range(count):
        batches.put(program(str(number), later=later))
    return batches


def test_few_programs_go_singly_and_are_spread() -> None:
    sent = all_that_fit(filled(6, {"a": 2, "b": 4}))
    assert [len(batch.programs) for batch in sent] == [1] * 6
    assert Counter(batch.node for batch in sent) == {"a": 2, "b": 4}
    assert [name for batch in sent for name in names(batch)] == [str(number) for number in range(6)]


def test_a_node_has_two_batches_a_slot_and_no_more() -> None:
    batches = filled(1000, {"a": 2, "b": 3})
    sent = all_that_fit(batches)
    assert Counter(batch.node for batch in sent) == {"a": 4, "b": 6}
    assert {len(batch.programs) for batch in sent} == {8}
    batches.ended(sent[0])
    (one,) = all_that_fit(batches)
    assert one.node == sent[0].node
    assert names(one)[0] == "80"


def test_several_processes_share_a_nodes_room() -> None:
    assert len(all_that_fit(filled(1000, {"a": 4}, sharers=2))) == 4
    assert len(all_that_fit(filled(1000, {"a": 4}, sharers=100))) == 1


def test_batches_shrink_towards_the_end() -> None:
    """A verdict comes with the last of its batch, so none waits for others while a slot is free."""
    batches = filled(40, {"a": 2, "b": 2})
    sizes = []
    while sent := all_that_fit(batches):
        sizes += [len(batch.programs) for batch in sent]
        for batch in sent:
            batches.ended(batch)
    assert sum(sizes) == 40
    assert sizes[-4:] == [1, 1, 1, 1]
    assert max(sizes) > 1


def test_what_may_wait_waits_and_never_takes_all_room() -> None:
    batches = filled(100, {"a": 2}, later=True)
    sent = all_that_fit(batches)
    assert len(sent) == 2
    assert all(batch.later for batch in sent)
    for number in range(3):
        batches.put(program(f"paid {number}"))
    assert [names(batch) for batch in all_that_fit(batches)] == [["paid 0"], ["paid 1"]]
    batches.ended(sent[0])
    assert names(batches.next()) == ["paid 2"]


def test_cancelled_programs_are_left_out() -> None:
    batches = filled(0, {"a": 1})
    programs = [program(str(number)) for number in range(20)]
    for each in programs:
        batches.put(each)
    for number in (0, 1, 5, 19):
        assert programs[number].future.cancel()
    seen = []
    while (batch := batches.next()) is not None:
        seen += names(batch)
        batches.ended(batch)
    assert seen == [str(number) for number in range(20) if number not in (0, 1, 5, 19)]
    assert batches.next() is None


def test_only_cancelled_programs_are_no_batch() -> None:
    batches = filled(0, {"a": 1})
    for _ in range(30):
        each = program()
        batches.put(each)
        each.future.cancel()
    assert batches.next() is None
    assert batches.take_all() == []


def test_programs_of_a_lost_node_go_elsewhere_singly_and_first() -> None:
    batches = filled(100, {"a": 1, "b": 1})
    sent = all_that_fit(batches)
    lost = [name for batch in sent if batch.node == "a" for name in names(batch)]
    assert len(lost) == 16
    assert batches.lose("a") == ()
    assert not any(batches.holds(batch) for batch in sent if batch.node == "a")
    again: list[str] = []
    batches.add("a", 1)  # it is back
    for batch in sent:
        if batch.node == "b":
            batches.ended(batch)
    while len(again) < 16:
        given = batches.next()
        assert given is not None
        if len(given.programs) == 1 and given.programs[0].lost_on:
            assert given.node == "b"
            again += names(given)
        batches.ended(given)
    assert sorted(again) == sorted(lost)


def test_the_only_node_that_is_back_judges_again() -> None:
    batches = filled(1, {"a": 1})
    assert names(batches.next()) == ["0"]
    assert batches.lose("a") == ()
    assert batches.next() is None
    batches.add("a", 1)
    assert names(batches.next()) == ["0"]


def test_a_program_is_lost_twice_and_not_more() -> None:
    batches = filled(1, {"a": 1, "b": 1, "c": 1})
    first = batches.next()
    assert first is not None
    assert batches.lose(first.node) == ()
    second = batches.next()
    assert second is not None
    assert second.node != first.node
    assert [each.asked.program.source for each in batches.lose(second.node)] == ["0"]
    assert batches.next() is None
    assert batches.lose(second.node) == ()


def test_a_batch_without_verdicts_goes_elsewhere_and_its_node_goes_on() -> None:
    batches = filled(2, {"a": 1, "b": 1})
    one, other = all_that_fit(batches)
    assert batches.lose_batch(one) == ()
    assert batches.holds(other)
    again = batches.next()
    assert again is not None
    assert again.node == other.node
    assert batches.lose_batch(again) == again.programs


def test_nothing_is_forgotten_whatever_happens() -> None:
    """Every program is judged once, or lost twice: nodes come and go at random."""
    for seed in range(30):
        _live(random.Random(seed))


def _live(chance: random.Random) -> None:
    batches = Batches(chance.randint(1, 3))
    programs, judged, lost = [program(str(n), later=n % 3 == 0) for n in range(300)], Counter[str](), Counter[str]()
    left, down = list(programs), {"a", "b", "c"}
    sent: list[Batch] = []

    def judge() -> None:
        batch = sent.pop(chance.randrange(len(sent)))
        if batches.holds(batch):
            batches.ended(batch)
            judged.update(names(batch))

    def lose() -> None:
        name = chance.choice(batches.nodes)
        down.add(name)
        lost.update(each.asked.program.source for each in batches.lose(name))

    def come_back() -> None:
        name = chance.choice(sorted(down))
        down.remove(name)
        batches.add(name, chance.randint(1, 3))

    while sum(judged.values()) + sum(lost.values()) < len(programs):
        for _ in range(min(len(left), chance.randint(0, 20))):
            batches.put(left.pop())
        sent += all_that_fit(batches)
        can: list[tuple[Callable[[], None], bool]] = [
            (judge, bool(sent)),
            (lose, bool(batches.nodes) and chance.random() < 0.2),
            (come_back, bool(down)),
        ]
        for act, possible in can:
            if possible:
                act()
    assert max((judged + lost).values()) == 1
    assert len(judged + lost) == len(programs)
    assert batches.take_all() == []
