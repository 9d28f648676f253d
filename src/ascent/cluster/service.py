"""`ascent serve MODEL --cluster ADDRESS`: servers over the nodes of a cluster, until they are stopped."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from ascent.cluster.connection import connected
from ascent.cluster.layout import lay_out
from ascent.cluster.logs import Shown
from ascent.cluster.membership import Membership
from ascent.cluster.placement import Placement
from ascent.cluster.places import Wanted
from ascent.cluster.ports import port_range
from ascent.cluster.serving import Servers
from ascent.config.sections import ClusterSection
from ascent.errors import InputError
from ascent.rollout.service.command import api_key
from ascent.rollout.service.record import name_for
from ascent.rollout.service.running import logs_folder
from ascent.rollout.service.servers_file import SERVERS
from ascent.rollout.service.settings import ServiceSettings

_LOOK = 0.3


def serve(settings: ServiceSettings, args: argparse.Namespace) -> int:
    """Place `settings.replicas` servers, and serve until SIGINT or SIGTERM (0), or until one failed for good (2).

    The servers end with this process. Raises InputError where there is no room for them, or no token is given.
    """
    token = api_key(args)
    if token is None:
        raise InputError(
            "--cluster: other machines could reach the servers, so an API key is needed",
            "Set ASCENT_API_KEY (such as: export ASCENT_API_KEY=$(openssl rand -hex 24)).",
        )
    section, name = ClusterSection(address=args.cluster), args.name or name_for(Path(args.model).name)
    folder = (args.logs or logs_folder() / name).absolute()
    with connected(section) as cluster, ExitStack() as stack:
        signal.signal(signal.SIGTERM, _interrupt)  # once connected: Ray sets a handler of its own
        members = Membership(cluster)
        stack.callback(members.close)
        placement = Placement(members, section, time.sleep)
        wanted = Wanted(0, replicas=settings.replicas, tensor_parallel=settings.tensor_parallel, judges=False)
        try:
            layout, held = placement.hold(partial(lay_out, wanted=wanted), lambda made: made.replicas)
            servers = Servers(
                held,
                section,
                port_range(section.ports),
                kind=layout.kind,
                tensor_parallel=settings.tensor_parallel,
                folder=folder,
                name=name,
                token=token,
                placement=placement,
                shown=Shown(),
            )
            stack.callback(servers.close)
            servers.settings = settings
            return _look_after(servers, members, name)
        except KeyboardInterrupt:
            _say(f"service {name} stopped")
            return 0


def _look_after(servers: Servers, members: Membership, name: str) -> int:
    told = False
    while not servers.failed:
        servers.look(members.alive())
        if servers.ready and not told:
            told = True
            _say(
                "\n".join([f"service {name} serves on {len(servers.urls)} servers", *(f"  {u}" for u in servers.urls)])
            )
            _say(
                f"train with it: ASCENT_API_KEY, and rollout.server={servers.folder / SERVERS} (where a server moves "
                f"the training follows), or the URLs with commas between; Ctrl-C ends it"
            )
        time.sleep(_LOOK)
    _say(f"error: service {name}: {servers.failed}")
    return 2


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
