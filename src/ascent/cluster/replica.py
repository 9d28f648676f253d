"""One server on a node, under its supervisor: `python -m ascent.cluster.replica`.

The first line of standard input says what to serve, as JSON with the server's token, which so is in no file and no
command line. The server ends when standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ascent.errors import InputError
from ascent.host.keeper import end_with_standard_input
from ascent.host.process import set_up_process
from ascent.rollout.service.running import ServiceStartError, running_service, wait_until_it_ends
from ascent.rollout.service.settings import ServiceSettings, from_json


def first_line(settings: ServiceSettings, *, name: str, logs: Path, token: str) -> str:
    """What this program is told."""
    told = {"settings": settings.to_json(), "name": name, "logs": str(logs), "token": token}
    return json.dumps(told)


def main() -> int:
    """Serve until told to end; 2 when the server doesn't start, or failed."""
    told = json.loads(_line())
    end_with_standard_input()
    set_up_process()
    settings = from_json(told["settings"])
    try:
        with running_service(
            settings, name=told["name"], log_folder=Path(told["logs"]), api_key=told["token"]
        ) as address:
            why, _ = wait_until_it_ends(address)
    except ServiceStartError as error:
        print(f"{error.log_text}\nerror: {error}", flush=True)
        return 2
    except InputError as error:
        print(f"error: {error}", flush=True)
        return 2
    print(f"error: {why}", flush=True)
    return 2


def _line() -> bytes:
    """The first line, and nothing after it: who comes later reads on."""
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(0, 1)):
        line += letter
    return line


if __name__ == "__main__":
    sys.exit(main())
