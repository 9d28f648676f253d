"""Many completions and few files: what is in flight is limited, and a full table of files is no dead server."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.host import open_files
from ascent.rollout.in_vllm.owned_segments import Segment
from ascent.rollout.in_vllm.shared_memory import OpenedSegment, SegmentError
from ascent.rollout.service import record
from ascent.rollout.service.address import ServiceAddress, lost
from ascent.rollout.service.processes import start_ticks
from ascent.rollout.service.server_process import Endpoint
from ascent.sandbox.errors import SlotError
from ascent.sandbox.interpreter import find_interpreter
from ascent.sandbox.slot import Slot, SlotConfig

pytest.importorskip("aiohttp")
pytest.importorskip("uvicorn")

from tests.rollout.fake_servers import TOKEN, FakeServer, PostsOnce, address_of

from ascent.rollout.engines.served import dispatch
from ascent.rollout.engines.served.engine import ServedEngine
from ascent.types import RolloutRequest, Sampling

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[FakeServer]]:
    made = [FakeServer(tmp_path / str(number)) for number in range(2)]
    yield made
    for server in made:
        server.stop()


def client(servers: list[FakeServer], soft: int, hard: int, code: str, seconds: float = 120) -> str:
    """What `code` says in a process that may have so many open files: with an engine over the servers, and `groups`."""
    before = f"""
        import contextlib, logging, os, resource, sys, threading, time
        resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
        logging.basicConfig(level="WARNING", stream=sys.stdout)
        from tests.rollout.fake_servers import PostsOnce
        from ascent.rollout.engine import EngineLostError
        from ascent.rollout.engines.served import dispatch, http_thread
        from ascent.rollout.engines.served.engine import ServedEngine
        from ascent.rollout.service.address import ServiceAddress
        from ascent.types import RolloutRequest, Sampling
        def groups(count, n):
            return [RolloutRequest(f"g{{g}}", (5, g), n, Sampling(8), 7) for g in range(count)]
        def finish(engine):
            places = []
            while engine.unfinished():
                places += [(completion.group_id, completion.index) for completion in engine.poll()]
            return places
        address = ServiceAddress("stand-ins", {tuple(server.url for server in servers)!r}, {TOKEN!r})
    """
    script = textwrap.dedent(before) + textwrap.dedent(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_SAMPLE = """
    engine = ServedEngine(address, PostsOnce(), holder_name="test")
    engine.update_weights(iter(()), 1)
    engine.submit(groups({count}, {n}))
    places = finish(engine)
    assert len(places) == len(set(places)) == {count} * {n}
    engine.close()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_ten_thousand_completions_need_few_files(servers: list[FakeServer]) -> None:
    most = 0

    def behave(body: dict[str, object]) -> None:
        nonlocal most
        most = max(most, *(len(server.guard._running) for server in servers))

    for server in servers:
        server.behave = behave
    assert client(servers, 256, 256, _SAMPLE.format(count=1250, n=8)).split() == ["256"]
    assert sum(len(server.sampled) for server in servers) == 10_000
    assert 20 < most < 100, "as many as the files allow, and no more"


def test_the_soft_limit_is_raised(servers: list[FakeServer]) -> None:
    assert client(servers, 64, 2000, _SAMPLE.format(count=300, n=4)).split() == ["2000"]


_FULL = """
    http_thread._KEEP_ALIVE_SECONDS = 0.01
    dispatch._PAUSES = (0.05,) * 5
    dispatch.LOOK_SECONDS = 0.1
    engine = ServedEngine(address, PostsOnce(), holder_name="test")
    engine.update_weights(iter(()), 1)
    taken = []
    def take_all_files():
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
    take_all_files()
    for _ in range({left}):
        os.close(taken.pop())
    more, over = {left} == 0, threading.Event()
    def take_what_is_given_back():
        while not over.wait(0.001):
            take_all_files()
    taker = threading.Thread(target=take_what_is_given_back)
    if more:
        taker.start()
        time.sleep(0.5)  # until the connections that were kept are closed
    engine.submit(groups(40, 4))
    try:
        print(len(finish(engine)), "completions")
    except EngineLostError as error:
        print("error:", error)
    finally:
        over.set()
        if more:
            taker.join()
        for file in taken:
            os.close(file)
        engine.close()
"""


def test_with_a_few_files_left_fewer_are_asked_for_at_once(servers: list[FakeServer]) -> None:
    said = client(servers, 128, 128, _FULL.format(left=6))
    assert "160 completions" in said
    assert "Fewer completions are asked for at once" in said
    assert "does not answer" not in said


def test_with_no_file_left_the_limit_is_named(servers: list[FakeServer]) -> None:
    said = client(servers, 128, 128, _FULL.format(left=0))
    assert "error: " in said
    assert "this process may have 128 (hard limit 128)" in said
    assert "ulimit -n 65536" in said
    assert "does not answer" not in said, "the servers are well"


@pytest.mark.parametrize(("n", "expected"), [(8, [8] * 4), (5, [5] * 6), (100, [32])])
def test_a_server_has_enough_and_groups_stay_whole(
    servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch, n: int, expected: list[int]
) -> None:
    """A server that samples 16 at once is asked for 32: whole groups, or halves of its room of a large one."""
    monkeypatch.setattr(dispatch, "_SAMPLED_AT_ONCE", 16)
    server = servers[0]
    server.gate.clear()
    engine = ServedEngine(address_of(server), PostsOnce(), holder_name="test")
    with contextlib.closing(engine):
        engine.update_weights(iter(()), 1)
        engine.submit([RolloutRequest(f"g{g}", (5, g), n, Sampling(8), 7) for g in range(20)])
        until = time.monotonic() + 10
        while len(server.sampled) < sum(expected):
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.2)
        prompts = [tuple(body["token_ids"]) for body in server.sampled]
        assert [prompts.count(prompt) for prompt in dict.fromkeys(prompts)] == expected
        server.gate.set()
        finished = 0
        while engine.unfinished():
            finished += len(engine.poll())
        assert finished == 20 * n


@contextlib.contextmanager
def no_file_left() -> Iterator[None]:
    """This process can't open another file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_full_table_of_files_is_taken_for_nothing_else(
    servers: list[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a service that was stopped, a process that is gone, a server that hangs, or a sandbox's own death."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = record.claim("tiny")
    ticks = start_ticks(os.getpid()) or 0
    settings = {"engine": {"dtype": "float32"}}
    record.write(folder, record.ServiceRecord("tiny", os.getpid(), ticks, "model", 64, "token", None, settings, ()))
    address = ServiceAddress("tiny", ("http://127.0.0.1:1",), "token", folder)
    slot = Slot(SlotConfig(find_interpreter(())), str(tmp_path), None)
    with no_file_left():
        with pytest.raises(OSError, match="Too many open files"):
            lost(address)
        with pytest.raises(OSError, match="Too many open files"):
            start_ticks(os.getpid())
        with pytest.raises(OSError, match="Too many open files"):
            Endpoint("127.0.0.1", servers[0].port, TOKEN).status("/health", 1.0)
        with pytest.raises(SlotError, match=r"could not start: too many open files.*ulimit -n"):
            slot.start()
        with pytest.raises(SegmentError, match=r"^too many open files.*ulimit -n"):
            Segment(4096)
        with pytest.raises(SegmentError, match=r"can't be opened: Too many open files"):
            OpenedSegment("ascent-weights-" + "0" * 32)
    assert lost(address) is None
    slot.close()


def test_what_is_short_is_told_apart() -> None:
    assert not open_files.own_shortage(ConnectionRefusedError(111, "Connection refused"))
    assert "out of something: No space left" in open_files.own_shortage(OSError(28, "No space left on device"))
    caused = RuntimeError("a library's own words")
    caused.__cause__ = OSError(24, "Too many open files")
    assert "ulimit -n" in open_files.own_shortage(caused)
