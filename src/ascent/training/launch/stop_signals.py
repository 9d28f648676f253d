"""Signals that ask a training to stop: Ctrl-C, SIGTERM, and the SIGHUP of a lost connection or a closed terminal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_ASKED = b"\nstopping after this step (again: stop now, without a checkpoint)\n"
_HUNG_UP = b"\nthe terminal is gone: stopping after this step, with a checkpoint\n"


@contextlib.contextmanager
def listening(ask: Callable[[], None], insist: Callable[[], None]) -> Iterator[None]:
    """Call `ask` at the first signal, and `insist`, with the former handlers in place again, at the second SIGINT or
    SIGTERM.

    SIGHUP never insists: it comes in several copies, and beside a SIGTERM, without anybody's being impatient. Where it
    is ignored (`nohup`), it stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.getsignal(number) for number in numbers}
    asked = False
    requests = 0  # by whoever would be impatient

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked, requests
        requests += number != signal.SIGHUP
        if requests > 1:
            restore()
            insist()
        elif not asked:
            asked = True
            ask()
            with contextlib.suppress(OSError):  # the terminal may be gone; `print` could meet itself in a handler
                os.write(2, _HUNG_UP if number == signal.SIGHUP else _ASKED)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
