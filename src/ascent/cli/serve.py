"""`ascent serve`: sampling servers that trainings share; also shows, scales and stops them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ascent.cli.verb import EXIT_GOOD, Verbs, add_verb, refuse_unfit, tell
from ascent.errors import InputError
from ascent.tables import TRANSPORTS


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "serve", _serve, "run sampling servers that trainings share; or show, scale, stop them")
    verb.add_argument("model", nargs="?", help="a hub id or a folder")
    what = verb.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show the services of this machine and user")
    what.add_argument("--stop", metavar="NAME", help="stop a service of this machine")
    what.add_argument("--scale", nargs=2, metavar=("NAME", "N"), help="give a service N replicas while it serves")
    verb.add_argument("--json", action="store_true", help="with --status: one JSON object on standard output")
    verb.add_argument("--name", help="default: the model's")
    verb.add_argument("--replicas", type=int, default=1, metavar="N", help="servers (default: 1)")
    verb.add_argument("-tp", "--tensor-parallel", type=int, default=1, metavar="N", help="devices of each server")
    verb.add_argument("--devices", metavar="0,1,...", help="which of the visible devices (default: from 0 on)")
    verb.add_argument("--cluster", metavar="ADDRESS", help="over the nodes of a Ray cluster: auto, or HOST:PORT")
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    verb.add_argument("--port", type=int, default=0, help="of the first server (default: free ports)")
    verb.add_argument("--gateway", nargs="?", type=int, const=0, metavar="PORT", help="one address for OpenAI's API")
    verb.add_argument("--api-key", metavar="KEY", help="better given as ASCENT_API_KEY, which nobody else can see")
    verb.add_argument("--adapters", type=int, default=0, metavar="N", help="trainings that share it, a LoRA each")
    verb.add_argument("--adapter-rank", type=int, default=64, metavar="R", help="largest rank of those (default: 64)")
    transports = ["auto", *TRANSPORTS]
    verb.add_argument("--transport", choices=transports, default="auto", help="how new weights come (default: auto)")
    verb.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on CPU")
    verb.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt and completion; default: the model's")
    verb.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="sampled at once (default: 64)")
    verb.add_argument("--engine-share", type=float, default=0.85, help="of a device's memory (default: 0.85)")
    verb.add_argument("--kv-cache-mb", type=int, metavar="MB", help="exact size of the KV cache; on CPU: 512")
    verb.add_argument("--eager", action=argparse.BooleanOptionalAction, help="no graphs (default on CPU and NPU)")
    verb.add_argument("--speculative", choices=["ngram", "suffix"], help="guess tokens from text that was seen")
    verb.add_argument("--speculative-tokens", type=int, default=4, metavar="N", help="at once (default: 4)")
    verb.add_argument("--trust-remote-code", action="store_true", help="run the model's own Python code")
    verb.add_argument("--max-restarts", type=int, default=5, metavar="N", help="of a server in 30 minutes (default: 5)")
    verb.add_argument("--logs", type=Path, metavar="FOLDER", help="default: ~/.local/state/ascent/serve/NAME")
    verb.add_argument("--vllm", action="append", default=[], metavar="ARG", help="one more argument for vLLM's server")
    verb.add_argument("--force", action="store_true", help="in spite of preflight's errors, or of others on a device")


def _serve(args: argparse.Namespace) -> int:
    if args.status:
        from ascent.rollout.service.status import status

        return tell(status, args)
    if args.stop:
        from ascent.rollout.service.running import stop_service

        stop_service(args.stop)
        print(f"service {args.stop} stopped", file=sys.stderr)
        return EXIT_GOOD
    if args.scale:
        return _scale(args)
    if args.model is None:
        raise InputError("ascent serve takes a model, --status, --scale NAME N or --stop NAME")
    from ascent.environment import explain_failure, preflight
    from ascent.host.process import set_up_process
    from ascent.rollout.service import command

    set_up_process(debug=args.debug)
    if args.cluster is not None:
        if args.gateway is not None:
            raise InputError("--gateway: servers over a cluster have none", "Leave it out, or serve on this machine.")
        from ascent.cluster.service import serve

        return serve(command.settings(args, elsewhere=True), args)
    settings = command.settings(args)
    checked = preflight(
        server_mode=True,
        weight_updates=True,
        graph_mode=not settings.engine.enforce_eager,
        server_devices=settings.devices,
    )
    refuse_unfit(checked, "serve", args)
    return command.serve(settings, args, explain_failure)


def _scale(args: argparse.Namespace) -> int:
    from ascent.rollout.service.scaling import scale_service

    name, replicas = args.scale
    try:
        scale_service(name, int(replicas), None if args.devices is None else [int(i) for i in args.devices.split(",")])
    except ValueError as error:
        raise InputError(f"--scale NAME N and --devices take whole numbers: {error}") from error
    except KeyboardInterrupt:
        print(f"service {name} goes on with it; ascent serve --status shows how far it is", file=sys.stderr)
    return EXIT_GOOD
