"""One warm sandbox for the tests that don't need one of their own.

The tests' sandboxes run at the priority of the tests themselves (`nice=0`): at nice 19, beside a busy neighbour, a
second of CPU time takes minutes. That 19 is the default has a test of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ascent.sandbox import Limits, Sandbox, SandboxError

QUICK = Limits(wall_seconds=5.0, cpu_seconds=1.0)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The strongest level of this machine, one slot."""
    try:
        opened = Sandbox(slots=1, limits=QUICK, nice=0)
    except SandboxError as error:
        pytest.skip(f"no confinement here: {error}")
    with opened:
        yield opened
