"""What holds for each release of vLLM, how weights are cut, and what is refused; no engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.in_vllm.owned_segments import Segment
from ascent.rollout.in_vllm.shared_memory import OpenedSegment, SegmentError, Slot, parse_slots
from ascent.rollout.weights.control import ServerCallError
from ascent.rollout.weights.delivery import WeightDelivery
from ascent.rollout.weights.transports.choice import transport
from ascent.rollout.weights.update_api import update_api
from ascent.rollout.weights.verify.canary import CanaryTolerance

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("version", "start", "finish", "stateful", "reports"),
    [
        ("0.23.0", {"is_checkpoint_format": True}, {}, False, False),
        ("0.23.0.post1", {"is_checkpoint_format": True}, {}, False, False),
        ("0.24.1", {"is_checkpoint_format": True}, {}, False, False),
        ("0.25.1", {}, {}, False, False),
        ("0.26.0", {}, {}, False, True),
        ("0.27.1", {}, {"weight_version": "7"}, False, True),
        ("0.28.0", {}, {"weight_version": "7"}, True, True),
        ("0.31.0+cpu", {}, {"weight_version": "7"}, True, True),
        ("1.0.0.dev3", {}, {"weight_version": "7"}, True, True),
    ],
)
def test_what_holds_for_each_release(version: str, start: Any, finish: Any, stateful: bool, reports: bool) -> None:
    made = update_api(version)
    assert made.start_body() == start
    assert made.finish_body(7) == finish
    assert made.stateful_trainer is stateful
    assert made.reports_cache_reset is reports


@pytest.mark.parametrize(
    ("version", "message"), [("0.21.0", "from 0.22 on"), ("", "not a version"), ("x", "not a ver")]
)
def test_releases_that_are_too_old_or_none_are_refused(version: str, message: str) -> None:
    with pytest.raises(WeightSyncError, match=message):
        update_api(version)


GOOD = {"name": "w", "dtype": "float32", "shape": [4, 4], "offset": 0}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "a list that is not empty"),
        ("w", "a list that is not empty"),
        ({"w": GOOD}, "a list that is not empty"),
        ([["w", "float32", [4], 0]], "exactly name, dtype, shape and offset"),
        ([{**GOOD, "loader": "os.system"}], "exactly name, dtype, shape and offset"),
        ([{**GOOD, "name": ""}], "must be text"),
        ([{**GOOD, "name": "w" * 5000}], "must be text"),
        ([{**GOOD, "name": 3}], "must be text"),
        ([{**GOOD, "dtype": "load"}], "unknown dtype 'load'"),
        ([{**GOOD, "dtype": ["float32"]}], "unknown dtype"),
        ([{**GOOD, "shape": [-1, 4]}], "at most 8 sizes"),
        ([{**GOOD, "shape": [1.5]}], "at most 8 sizes"),
        ([{**GOOD, "shape": [True]}], "at most 8 sizes"),
        ([{**GOOD, "shape": [1] * 9}], "at most 8 sizes"),
        ([{**GOOD, "shape": [2**47, 2**47]}], "ends at byte"),
        ([{**GOOD, "shape": [2**60]}], "at most 8 sizes"),
        ([{**GOOD, "offset": -64}], "count of bytes"),
        ([{**GOOD, "offset": 1}], "overlaps another tensor or is not aligned"),
        ([{**GOOD, "offset": 4096}], "ends at byte 4160 of a segment of 4096"),
        ([{**GOOD, "shape": [1025]}], "ends at byte 4100 of a segment of 4096"),
        ([GOOD, {**GOOD, "name": "v"}], "overlaps another tensor"),
        ([GOOD, {**GOOD, "offset": 64}], "named twice"),
    ],
)
def test_hostile_chunks_are_refused(tensors: Any, message: str) -> None:
    with pytest.raises(SegmentError, match=message):
        parse_slots(tensors, 4096)


def test_chunks_that_fit_are_read() -> None:
    described = [GOOD, {"name": "v", "dtype": "bfloat16", "shape": [], "offset": 64}]
    assert parse_slots(described, 66) == [Slot("w", "float32", (4, 4), 0), Slot("v", "bfloat16", (), 64)]


@pytest.mark.torch
def test_segments_are_private_and_gone_after_use() -> None:
    import torch

    segment = Segment(1 << 16)
    path = Path("/dev/shm") / segment.name
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        slot = Slot("w", "bfloat16", (3, 5), 128)
        segment.tensor(slot).copy_(torch.arange(15).view(3, 5))
        opened = OpenedSegment(segment.name)
        received = opened.tensor(slot)
        assert torch.equal(received, torch.arange(15).view(3, 5).bfloat16())
        received.zero_()
        assert segment.tensor(slot).any(), "a reader can't change the trainer's memory"
        os.chmod(path, 0o644)
        with pytest.raises(SegmentError, match="not a private file of this user"):
            OpenedSegment(segment.name)
    finally:
        segment.close()
    assert not path.exists()
    segment.close()


@pytest.mark.parametrize("name", ["", "/etc/passwd", "ascent-weights-", "ascent-weights-" + "g" * 32, "../x", None, 3])
def test_only_segments_are_opened(name: Any) -> None:
    with pytest.raises(SegmentError, match="not the name of a segment"):
        OpenedSegment(name)


def test_links_are_not_followed() -> None:
    link = Path("/dev/shm") / ("ascent-weights-" + "a" * 32)
    link.symlink_to("/etc/passwd")
    try:
        with pytest.raises(SegmentError, match="can't be opened"):
            OpenedSegment(link.name)
    finally:
        link.unlink()


def test_no_room_is_said_with_what_to_do() -> None:
    free = os.statvfs("/dev/shm")
    with pytest.raises(SegmentError, match=r"/dev/shm has \d+ MiB free.*--shm-size"):
        Segment(free.f_bavail * free.f_frsize + 2**30)
    assert not [path for path in Path("/dev/shm").glob("ascent-weights-*") if path.stat().st_size > 2**30]


def test_a_living_trainers_segment_is_left_alone() -> None:
    from ascent.rollout.in_vllm.owned_segments import remove_stale

    code = (
        "from ascent.rollout.in_vllm.owned_segments import Segment\n"
        "import sys\n"
        "segment = Segment(4096)\n"
        "print(segment.name, flush=True)\n"
        "sys.stdin.read()\n"
        "segment.close()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    name = other.stdout.readline().strip()
    assert name not in remove_stale()
    assert (Path("/dev/shm") / name).exists()
    other.communicate("")
    assert not (Path("/dev/shm") / name).exists()


@pytest.mark.torch
@pytest.mark.parametrize("limit", [1, 100, 4096, 1 << 20])
def test_chunks_hold_every_tensor_once_and_keep_their_measure(limit: int) -> None:
    import torch

    from ascent.rollout.weights.transports.chunks import described, device_chunks

    walk = [(f"w{n}", torch.randn(n % 7 + 1, n % 5)) for n in range(40)] + [("count", torch.arange(3))]
    seen: list[str] = []
    chunks = list(device_chunks(iter(walk), "bfloat16", "cpu", limit, lambda name, tensor: seen.append(name)))
    assert [name for chunk in chunks for name, _ in chunk] == [name for name, _ in walk] == seen
    for chunk in chunks:
        assert len(chunk) == 1 or sum(t.numel() * t.element_size() for _, t in chunk) <= limit
    last = described(chunks[-1])
    assert last["names"][-1] == "count"
    assert last["dtype_names"][-1] == "int64"
    assert last["shapes"][-1] == [3]
    assert described(chunks[0])["dtype_names"][0] == "bfloat16"


class Plain:
    """A server that was started without the worker extension."""

    url = "http://plain"
    vllm_version = "0.31.0"

    def post(self, route: str, body: Any, *, timeout: float) -> Any:
        raise ServerCallError(
            f"{route}: Worker failed with error 'Method {body.get('method')!r} is not implemented.'", 500
        )

    def get(self, route: str, *, timeout: float) -> Any:
        raise ServerCallError(route, 404)


@pytest.mark.torch
def test_a_server_without_the_extension_is_told_what_to_do() -> None:
    import torch

    walked = []

    def walk() -> Any:
        for name in "ab":
            yield name, torch.zeros(2)
            walked.append(name)

    delivery = WeightDelivery(transport("shm", "float32", "cpu"), "float32")
    with pytest.raises(WeightSyncError, match=r"can't verify weights: start it with --worker-extension-cls ascent\."):
        delivery.deliver([Plain()], walk(), 1)
    assert walked == ["a", "b"]


def test_canary_learns_what_is_usual_and_no_more() -> None:
    tolerance = CanaryTolerance("float32")
    assert tolerance.check(0.01, "float32").agrees, "nothing is known yet"
    assert not tolerance.check(0.045, "float32").agrees, "more than four times what was usual"
    assert tolerance.check(0.039, "float32").agrees
    first = tolerance.check(0.01, "float32").allowed
    for _ in range(100):
        result = tolerance.check(0.02, "float32")
    assert first < result.allowed <= 0.05, "grows, but not beyond its ceiling"
    assert not tolerance.check(float("nan"), "float32").agrees
    assert not tolerance.check(float("inf"), "float32").agrees
    quiet = CanaryTolerance("bfloat16")
    for _ in range(10):
        assert quiet.check(1e-6, "bfloat16").agrees
    assert quiet.check(0.015, "bfloat16").agrees, "below the floor nothing is alarming"
    assert not CanaryTolerance("float32").check(0.2, "float32").agrees, "the first one too"


@pytest.mark.torch
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 10_000, 1 << 20])
def test_shared_chunks_hold_every_tensor_once_in_two_segments(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server would read, while the next chunk is being written already."""
    import torch

    from ascent.rollout.weights.transports import shm as shm_sender

    walk = [(f"w{n}", torch.randn(n * 37 % 61, 5 + n % 3)) for n in range(40)] + [("count", torch.arange(3))]
    read: dict[str, Any] = {}
    sizes = []

    class Reader:
        url = "reader"
        vllm_version = "0.31.0"

        def post(self, route: str, body: Any, *, timeout: float) -> Any:
            segment = OpenedSegment(body["update_info"]["segment"])
            slots = parse_slots(body["update_info"]["tensors"], segment.size)
            sizes.append(sum(slot.nbytes for slot in slots) if len(slots) > 1 else 0)
            for slot in slots:
                assert slot.name not in read
                read[slot.name] = segment.tensor(slot).clone()

        def get(self, route: str, *, timeout: float) -> Any:
            raise ServerCallError(route, 404)

    alive: set[str] = set()
    most = 0

    class Counted(Segment):
        def __init__(self, size: int) -> None:
            nonlocal most
            super().__init__(size)
            alive.add(self.name)
            most = max(most, len(alive))

        def close(self) -> None:
            super().close()
            alive.discard(self.name)

    monkeypatch.setattr(shm_sender, "Segment", Counted)
    made = shm_sender.ShmTransport("bfloat16", chunk_bytes=chunk_bytes)
    assert made.send([Reader()], iter(walk), lambda name, tensor: None) == {}
    assert list(read) == [name for name, _ in walk]
    for name, tensor in walk:
        assert torch.equal(read[name], tensor.bfloat16() if tensor.is_floating_point() else tensor)
    assert most <= 2
    assert not alive
    assert max(sizes) <= chunk_bytes
