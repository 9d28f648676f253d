"""A process that ends at once does what an ordinary end does, without the interpreter's finalization."""

import subprocess
import sys

_PROGRAM = """
import atexit, sys, threading, time
from ascent.host.ending import end_at_once

class Late:
    def __del__(self):
        print("finalized")

kept = Late()
atexit.register(print, "asked for")
threading.Thread(target=lambda: (time.sleep(0.2), print("waited for"))).start()
print("written", end="")
end_at_once(7)
"""


def test_what_was_asked_for_at_the_exit_is_done_and_nothing_is_finalized() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "writtenwaited for\nasked for\n", "")
