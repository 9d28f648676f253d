"""One run in a process of its own: `python -m ascent.bench.regress.child FOLDER` reads FOLDER/job.json and writes
FOLDER/run.json, or FOLDER/refused.json for what the user can mend."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from ascent.errors import InputError

JOB, RUN, REFUSED = "job.json", "run.json", "refused.json"


def main(folder: Path) -> int:
    """Measure; returns the exit code, 2 for what was refused."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    from pydantic import TypeAdapter

    from ascent.bench.regress.measure import Job, measure_here

    job = TypeAdapter(Job).validate_json((folder / JOB).read_bytes())
    try:
        run = measure_here(job)
    except InputError as error:
        refused = {"message": error.message, "mend": error.mend}
        (folder / REFUSED).write_text(json.dumps(refused), encoding="utf-8")
        return 2
    (folder / RUN).write_text(json.dumps(asdict(run)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
