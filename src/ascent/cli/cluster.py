"""`ascent cluster`: several machines joined by Ray: how they are joined, what would stand where, how it scales."""

from __future__ import annotations

import argparse
from pathlib import Path

from ascent.cli.verb import Verbs, add_verb, tell
from ascent.errors import InputError

_NODES = "COUNTxDEVICES:KIND[:CORES], such as 4x8:npu; machines that differ with commas between them"


def add(verbs: Verbs) -> None:
    help_line = "several machines joined by Ray: how they are joined, what would stand where, how it scales"
    cluster = verbs.add_parser("cluster", help=help_line, description=help_line)
    actions = cluster.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_plan(actions)
    _add_check(actions)
    _add_commands(actions)
    _add_simulate(actions)


def _add_plan(actions: Verbs) -> None:
    plan = add_verb(actions, "plan", _plan, "where a run's ranks, servers and judges would stand; starts nothing")
    plan.add_argument("config", type=Path, metavar="CONFIG", help="a run's YAML file")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file's")
    plan.add_argument("--devices", type=int, default=1, metavar="N", help="training processes, one a device")
    plan.add_argument("--nodes", metavar="NODES", help=f"nodes that aren't there yet: {_NODES}")
    plan.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _add_check(actions: Verbs) -> None:
    check = add_verb(actions, "check", _check, "look at all machines of a cluster, compare them, and let them try")
    check.add_argument("config", nargs="?", metavar="CONFIG", help="a run's YAML file: also its model and its folder")
    check.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file's")
    check.add_argument("--run", type=Path, metavar="DIR", help="a folder that all machines should share")
    check.add_argument("--all", action="store_true", help="also list what is right")
    check.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _add_commands(actions: Verbs) -> None:
    lines = add_verb(actions, "commands", _commands, "the lines that join machines to a cluster, to paste")
    lines.add_argument("--head", required=True, metavar="ADDRESS[:PORT]", help="of the machine that is the head")
    lines.add_argument("--nodes", required=True, metavar="NODES", help=f"the head first: {_NODES}")
    lines.add_argument("--interface", metavar="NAME", help="between the machines (default: the one that leads there)")
    lines.add_argument("--ports", default="29400-29499", metavar="FIRST-LAST", help="the run's (cluster.ports)")
    lines.add_argument("--ray", metavar="RELEASE", help="that the machines have (default: the one that is here)")
    lines.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _add_simulate(actions: Verbs) -> None:
    simulate = add_verb(actions, "simulate", _simulate, "step time, communication, weights and judging of many cards")
    simulate.add_argument("model", nargs="?", metavar="MODEL", help="a hub id or a folder (default: a model of 7.6 B)")
    simulate.add_argument("--device", default="910B3", metavar="CARD", help="as of ascent plan (default: 910B3)")
    simulate.add_argument("--cards", metavar="N,N,...", help="default: 8 to 1000")
    simulate.add_argument("--cards-a-node", type=int, default=8, metavar="K", help="default: 8")
    simulate.add_argument("--training-share", type=float, default=0.5, metavar="S", help="of the cards (default: 0.5)")
    simulate.add_argument("--tokens", type=int, metavar="T", help="of a training card and step (default: 32768)")
    simulate.add_argument("--batch", type=int, metavar="T", help="tokens of a whole step, dealt out to the cards")
    simulate.add_argument("--pass-tokens", type=int, metavar="T", help="at most, of a card and pass (default: 4096)")
    simulate.add_argument("-tp", "--tensor-parallel", type=int, metavar="N", help="cards of a server (default: 4)")
    simulate.add_argument("--sequences", type=int, metavar="N", help="that a server samples at once (default: 64)")
    simulate.add_argument("--constants", type=Path, metavar="FILE", help="TOML: bandwidths and delays that you know")
    simulate.add_argument("--measured", type=Path, metavar="FILE", help="JSON of benchmarks/cluster_simulation.py")
    simulate.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    simulate.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _plan(args: argparse.Namespace) -> int:
    from ascent.cluster.planning import planned

    if args.devices < 1:
        raise InputError(f"--devices {args.devices}: expected at least 1")
    return tell(lambda: planned(args.config, args.overrides, args.devices, _several(args.nodes)), args)


def _check(args: argparse.Namespace) -> int:
    from ascent.cluster.checking.asked import asked_of
    from ascent.cluster.checking.checks import check

    words = [word for word in (args.config, *args.overrides) if word is not None]
    return tell(lambda: check(asked_of(words, args.run), everything=args.all), args)


def _commands(args: argparse.Namespace) -> int:
    from ascent.cluster.commands import commands, installed
    from ascent.cluster.nodes import by_hand

    ray = args.ray or installed()
    nodes = by_hand(_several(args.nodes))
    return tell(lambda: commands(nodes, args.head, ray=ray, interface=args.interface, run_ports=args.ports), args)


def _simulate(args: argparse.Namespace) -> int:
    from ascent.cluster.simulation import asked

    if args.tokens is not None and args.batch is not None:
        raise InputError("--tokens is of each training card, --batch of all of them; give one")
    given = {
        name: value
        for name in ("tokens", "batch", "pass_tokens", "tensor_parallel", "sequences")
        if (value := getattr(args, name)) is not None
    }
    made = asked.asked(
        args.model,
        card=args.device,
        cards=_numbers(args.cards),
        cards_a_node=args.cards_a_node,
        training_share=args.training_share,
        constants=args.constants,
        measured=args.measured,
        **given,
    )
    if args.svg is not None:
        from ascent.cluster.simulation.picture import svg

        try:
            args.svg.write_text(svg(made), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--svg {args.svg} can't be written: {error.strerror or error}") from error
    return tell(lambda: made, args)


def _several(given: str | None) -> list[str]:
    return [] if given is None else given.split(",")


def _numbers(given: str | None) -> list[int] | None:
    try:
        return None if given is None else [int(word) for word in given.split(",")]
    except ValueError as error:
        raise InputError(f"--cards {given}: expected numbers with commas between them, such as 8,64,512") from error
