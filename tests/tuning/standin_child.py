"""An engine child without an engine: answers the protocol of `ascent.tuning.engine_child`, or fails as it is told.

`standin_child.py HOW`: HOW is `well`, or what happens at the first probe: `crash`, `hang`, `memory` (as from an
allocator), `killed`, `refused`.
"""

import json
import os
import signal
import sys
import time

how = sys.argv[1]
print("a library says something", file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "end":
        break
    if request["do"] == "look":
        card = {"name": "test", "kind": "cpu", "capacity": 2**34, "usable": 2**34, "reserve": 0, "collective": 0}
        answer = {
            "ok": True,
            "kind": "cpu",
            "devices": 1,
            "cores": 2,
            "card": card | {"bandwidth": 1e10, "bf16": False},
        }
    elif request["do"] == "open":
        answer = {"ok": True, "seconds": 0.1}
    elif how == "refused":
        answer = {"ok": False, "why": "refused", "text": "block_size=7 is not to be had"}
    elif how == "hang":
        time.sleep(600)
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "memory":
        sys.exit("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    elif how == "crash":
        sys.exit("Illegal instruction, so to say")
    else:
        lengths = [group[1] for group in request["groups"]]
        tokens = sum(map(sum, lengths))
        prompts = sum(len(group[0]) for group in request["groups"])
        answer = {
            "ok": True, "seconds": tokens / 100, "sequences": sum(map(len, lengths)), "tokens": tokens,
            "prompt_tokens": prompts, "cut": False, "lengths": lengths, "steps": [[2, 0.5]],
            "stats": {"kv_cache_use": 0.25}, "peak_bytes": int(os.environ.get("OMP_NUM_THREADS", 7)), "total_bytes": 9,
        }  # fmt: skip
    print(json.dumps(answer), flush=True)
