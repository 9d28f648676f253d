"""`ascent cluster simulate`: what was asked, the points of each number of cards, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ascent.cluster.simulation.constants import NAMES, Check, Constants, of_card, spread
from ascent.cluster.simulation.points import USUAL, Point, Workload, point
from ascent.errors import InputError
from ascent.memory.cards import card as card_named
from ascent.memory.config_json import read_model

CARDS = (8, 16, 32, 64, 128, 256, 512, 1000)
_MOST_CARDS = 100_000
_COLUMNS = (
    *("cards", "train", "servers", "computes", "copies", "pieces", "sampling", "decode", "in turn", "beside"),
    *("collective", "one", "http", "least", "programs/s", "cores"),
)
_MEANINGS = (
    "computes: forward and backward, s. copies, pieces: communication's share of an update with whole copies (one sum",
    "of gradients) and with the policy in pieces (FSDP). sampling: s. decode: communication's share of decoding.",
    "in turn, beside: s of a step in pieces; beside: the next generation is sampled while it trains. collective, one,",
    "http, least: s of a weight update; one: by HTTP, every host from the trainer; http: passed on by hosts, as the",
    "transport does; least: if all links were always busy. cores: that judge as fast as programs come.",
    "Upper bounds: no communication beside computing is taken off, and nobody is late.",
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """The points, with everything that they are made of."""

    workload: Workload
    card: str
    constants: Constants
    checks: tuple[Check, ...]
    points: tuple[Point, ...]

    @property
    def good(self) -> bool:
        """There is nothing to find here."""
        return True

    def to_text(self) -> str:
        """For a terminal: the table, what its columns are, the constants with where they are from, the checks."""
        work = self.workload
        tokens = f"{work.tokens} tokens a training card and step"
        if work.batch is not None:
            tokens = f"{work.batch} tokens a step"
        head = (
            f"{work.name} on {self.card}: {work.cards_a_node} cards a node, {work.training_share:.0%} of them train, "
            f"servers of {work.tensor_parallel}; {tokens}, at most {work.pass_tokens} a pass"
        )
        rows = [_COLUMNS, *map(_row, self.points)]
        wide = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)) for row in rows]
        lines = [head, "", *table, "", *_MEANINGS, "", self._takes_over(), ""]
        return "\n".join([*lines, *self._constant_lines(), *self._check_lines()])

    def to_json(self) -> dict[str, Any]:
        """For programs: schema `ascent.cluster-simulate/1`; seconds, shares and units as in the names."""
        return {
            "schema": "ascent.cluster-simulate/1",
            "workload": asdict(self.workload),
            "card": self.card,
            "constants": {name: getattr(self.constants, name) for name in NAMES},
            "sources": dict(self.constants.sources),
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "points": [
                asdict(each)
                | {"ddp_share": each.ddp_share, "fsdp_share": each.fsdp_share}
                | {"in_turn": each.in_turn, "beside": each.beside}
                for each in self.points
            ],
        }

    def _takes_over(self) -> str:
        last = self.points[-1]
        return (
            f"with {last.cards} cards communication is half of an update where a training card has "
            f"{last.half_step:.0f} tokens\na step (whole copies), or {last.half_pass:.0f} tokens a pass (pieces)"
        )

    def _constant_lines(self) -> Iterator[str]:
        wide = max(map(len, NAMES))
        yield "constants (change them with --constants FILE):"
        for name in NAMES:
            yield f"  {name:<{wide}}  {getattr(self.constants, name):<6g}  {self.constants.sources[name]}"

    def _check_lines(self) -> Iterator[str]:
        if not self.checks:
            return
        yield ""
        yield "predicted from the measured constants, and measured:"
        wide = max(len(check.what) for check in self.checks)
        for check in self.checks:
            yield (
                f"  {check.what:<{wide}}  {check.predicted * 1e3:9.3f} ms  {check.measured * 1e3:9.3f} ms  "
                f"{check.error:+.0%}"
            )
        yield spread(self.checks)


def asked(
    model: str | None,
    *,
    card: str,
    cards: Sequence[int] | None = None,
    constants: Path | None = None,
    measured: Path | None = None,
    **settings: Any,
) -> Simulated:
    """The simulation of a model (None: the usual one) on so many cards. `settings`: fields of `Workload`.

    Raises InputError for what can't be simulated.
    """
    chosen = card_named(card)
    values, checks = of_card(chosen, constants, measured)
    workload = replace(USUAL if model is None else _of_model(model), **settings)
    _check(workload)
    counts = sorted(set(CARDS if cards is None else cards))
    if not counts or counts[0] < 1 or counts[-1] > _MOST_CARDS:
        raise InputError(f"--cards {','.join(map(str, counts))}: expected numbers from 1 to {_MOST_CARDS}")
    points = tuple(point(workload, count, values) for count in counts)
    return Simulated(workload, chosen.name, values, tuple(checks), points)


def _of_model(name: str) -> Workload:
    model = read_model(name, None)
    return replace(
        USUAL,
        name=name,
        parameters=float(model.parameters),
        active=float(model.active_parameters),
        layers=model.layers,
        hidden=model.hidden,
        kv_bytes=float(model.kv_bytes_per_token()),
    )


def _check(workload: Workload) -> None:
    counts = {
        "--tokens": workload.tokens,
        "--batch": workload.batch or 1,
        "--pass-tokens": workload.pass_tokens,
        "--cards-a-node": workload.cards_a_node,
        "--tensor-parallel": workload.tensor_parallel,
        "--sequences": workload.sequences,
    }
    wrong = [f"{option} {value}" for option, value in counts.items() if value < 1]
    if wrong:
        raise InputError(f"{wrong[0]}: expected at least 1")
    if not 0 < workload.training_share < 1:
        raise InputError(f"--training-share {workload.training_share:g}: expected a share between 0 and 1")


def _row(each: Point) -> tuple[str, ...]:
    return (
        *map(str, (each.cards, each.training, each.replicas)),
        f"{each.compute:.1f}",
        _percent(each.ddp_share),
        _percent(each.fsdp_share),
        f"{each.sampling:.1f}",
        _percent(each.tp_share),
        f"{each.in_turn:.1f}",
        f"{each.beside:.1f}",
        f"{each.weights_collective:.1f}",
        f"{each.weights_http:.0f}",
        f"{each.weights_by_rounds:.0f}",
        f"{each.weights_relayed:.0f}",
        f"{each.programs:.0f}",
        f"{each.judge_cores:.1f}",
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
