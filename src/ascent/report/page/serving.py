"""`ascent report`: the page, served to this machine until it is interrupted."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from pathlib import Path
from urllib.parse import quote

import uvicorn

from ascent.errors import InputError
from ascent.report.page.app import build_app
from ascent.report.page.run_library import library

_NICE = 5  # below a training on the same machine


def serve(root: Path, *, port: int, language: str) -> None:
    """Serve the runs at `root` on the loopback interface and print the address, until interrupted.

    Raises InputError when there is no run, or the port is taken. `port` 0 takes a free one.
    """
    runs = library(root)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        app = build_app(runs, token, language=language, cookie=f"ascent_report_{port}")
        os.nice(_NICE)
        place = f"runs/{quote(next(iter(runs.paths())), safe='')}/" if runs.single else ""
        print(f"http://127.0.0.1:{port}/{place}?token={token}", flush=True)
        print("this address holds the token that lets in; Ctrl+C ends the page", file=sys.stderr)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        try:
            with contextlib.suppress(KeyboardInterrupt):  # that is how one ends it
                uvicorn.Server(config).run(sockets=[listener])
        finally:
            runs.close()


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # whoever reads the address may ask at once
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} can't be had: {error.strerror or error}", "Choose another with --port, or 0 for a free one."
        ) from error
    return listener
