"""From judged completions to rates: what `ascent evaluate` tells of one policy, and of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ascent.report.paired import INTERVAL as PAIRED_INTERVAL
from ascent.report.paired import TEST, Difference, difference
from ascent.report.pass_rates import INTERVAL, Rate, pass_at_k, rate

_SHOWN = 5  # tasks that changed most


@dataclass(slots=True)
class TaskCounts:
    """A task's completions that were judged: `passed` of `samples` pass all tests; `greedy` is None where there is no
    such one."""

    samples: int = 0
    passed: int = 0
    greedy: bool | None = None

    @property
    def sampled(self) -> float:
        """The share of its samples that pass."""
        return self.passed / self.samples if self.samples else 0.0

    def to_json(self) -> dict[str, float]:
        """As under `results` in the line of an evaluation."""
        greedy = {} if self.greedy is None else {"greedy": float(self.greedy)}
        return {**greedy, "sampled": self.sampled, "samples": self.samples}


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy's tasks, by id in their order. `unjudged` completions count nowhere: the sandbox failed."""

    name: str
    given: str
    step: int
    folder: Path
    tasks: Mapping[str, TaskCounts]
    families: Mapping[str, str]
    unjudged: int

    def rates(self, k: Sequence[int], family: str | None = None) -> dict[str, Rate]:
        """`greedy` and each `pass@k`, over the tasks that have as many samples."""
        chosen = [c for task_id, c in self.tasks.items() if family in (None, self.families[task_id])]
        found = {}
        greedy = [float(counts.greedy) for counts in chosen if counts.greedy is not None]
        if greedy:
            found["greedy"] = rate(greedy)
        for each in k:
            enough = [counts for counts in chosen if counts.samples >= each]
            if enough:
                values = [pass_at_k(counts.samples, counts.passed, each) for counts in enough]
                found[f"pass@{each}"] = rate(values, samples=sum(counts.samples for counts in enough))
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours minus theirs, by what was measured; `better` and `worse` are the tasks whose samples changed most."""

    differences: Mapping[str, Difference]
    better: tuple[str, ...]
    worse: tuple[str, ...]


def counted(rows: Sequence[Mapping[str, Any]], order: Sequence[str]) -> tuple[dict[str, TaskCounts], int]:
    """The counts of tasks, from the columns sample_id, task_id, outcomes and reward of rollout files; and how many
    completions could not be judged."""
    tasks = {task_id: TaskCounts() for task_id in order}
    unjudged = 0
    for row in rows:
        if row["reward"] is None:
            unjudged += 1
            continue
        counts = tasks[row["task_id"]]
        passed = bool(row["outcomes"]) and all(outcome == "passed" for outcome in row["outcomes"])
        if is_greedy(row):
            counts.greedy = passed
        else:
            counts.samples += 1
            counts.passed += passed
    return tasks, unjudged


def is_greedy(row: Mapping[str, Any]) -> bool:
    """Whether a row of a rollout file is of a greedy completion: RUN/eval-0-greedy/RANK/PLACE."""
    return str(row["sample_id"]).rsplit("/", 3)[1].endswith("-greedy")


def compared(ours: PolicyResult, theirs: PolicyResult, k: Sequence[int]) -> Comparison:
    """Paired by task: those that both were asked."""
    both = [(mine, theirs.tasks[task_id]) for task_id, mine in ours.tasks.items() if task_id in theirs.tasks]
    found = {}
    pairs = [(a.greedy, b.greedy) for a, b in both if a.greedy is not None and b.greedy is not None]
    if pairs:
        found["greedy"] = difference([float(a) for a, _ in pairs], [float(b) for _, b in pairs])
    for each in k:
        enough = [(a, b) for a, b in both if min(a.samples, b.samples) >= each]
        if enough:
            mine, others = (
                [pass_at_k(counts.samples, counts.passed, each) for counts in half]
                for half in zip(*enough, strict=True)
            )
            found[f"pass@{each}"] = difference(mine, others)
    gains = {
        task_id: counts.sampled - theirs.tasks[task_id].sampled
        for task_id, counts in ours.tasks.items()
        if task_id in theirs.tasks
    }
    ranked = sorted(gains, key=lambda task_id: gains[task_id])
    worse = tuple(task_id for task_id in ranked[:_SHOWN] if gains[task_id] < 0)
    better = tuple(task_id for task_id in ranked[::-1][:_SHOWN] if gains[task_id] > 0)
    return Comparison(found, better, worse)


@dataclass(frozen=True, slots=True)
class EvaluateReport:
    """What the command tells."""

    ours: PolicyResult
    theirs: PolicyResult | None
    k: tuple[int, ...]
    about: str  # tasks and sampling, in words
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())
    good: bool = True

    def comparison(self) -> Comparison | None:
        """Ours against theirs; None where there is one policy, or no task of both."""
        if self.theirs is None or not set(self.ours.tasks) & set(self.theirs.tasks):
            return None
        return compared(self.ours, self.theirs, self.k)

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.evaluate/1."""
        comparison = self.comparison()
        return {
            "schema": "ascent.evaluate/1",
            **dict(self.settings),
            "intervals": INTERVAL,
            "policies": [_policy_json(each, self.k) for each in (self.ours, self.theirs) if each is not None],
            "comparison": None
            if comparison is None
            else {**asdict(comparison), "intervals": PAIRED_INTERVAL, "test": TEST},
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """For people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.about
        for policy in (self.ours, self.theirs):
            if policy is not None:
                yield ""
                yield from _policy_lines(policy, self.k)
        comparison = self.comparison()
        if comparison is not None and self.theirs is not None:
            yield ""
            yield f"{self.ours.name} - {self.theirs.name}, paired by task"
            for name, found in comparison.differences.items():
                counts = f"{found.better} tasks better, {found.worse} worse, {found.tasks} in all"
                yield f"  {name:<9} {found}; {counts}"
            for word, ids in (("better", comparison.better), ("worse", comparison.worse)):
                if ids:
                    shown = (
                        f"{i} ({self.theirs.tasks[i].sampled:.0%} -> {self.ours.tasks[i].sampled:.0%})" for i in ids
                    )
                    yield f"  {word:<9} {', '.join(shown)}"
            yield f"intervals of differences: {PAIRED_INTERVAL}"
            yield f"p: {TEST}"
        yield f"intervals: {INTERVAL}"
        yield f"look at every completion: ascent report {self.ours.folder}"


def numbered(number: int, what: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _policy_lines(policy: PolicyResult, k: Sequence[int]) -> Iterator[str]:
    yield f"{policy.name} ({policy.given})"
    for name, found in policy.rates(k).items():
        missing = len(policy.tasks) - found.tasks
        short = f", without {missing} tasks that have fewer samples" if missing else ""
        yield f"  {name:<9} {found}{short}"
    families = sorted(set(policy.families.values()))
    for family in families if len(families) > 1 else ():
        of_family = policy.rates((1,), family).get("pass@1")
        if of_family is not None:
            yield f"    {family or '-':<20} pass@1 {of_family}, {numbered(of_family.tasks, 'task')}"
    if policy.unjudged:
        yield f"  {policy.unjudged} completions could not be judged, and count nowhere"


def _policy_json(policy: PolicyResult, k: Sequence[int]) -> dict[str, Any]:
    return {
        "name": policy.name,
        "model": policy.given,
        "step": policy.step,
        "folder": str(policy.folder),
        "rates": {name: asdict(each) for name, each in policy.rates(k).items()},
        "unjudged": policy.unjudged,
        "tasks": {
            task_id: {**asdict(counts), "family": policy.families[task_id]} for task_id, counts in policy.tasks.items()
        },
    }
