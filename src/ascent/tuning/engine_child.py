"""In a process of its own: one engine that is tried. `python -m ascent.tuning.engine_child`.

Standard input and output hold one JSON object a line: `look` (what machine is this?), `open` (an engine, once a
process), `probe`, `end`. What libraries print goes to standard error. Settings of a whole process, such as
OMP_NUM_THREADS, are its environment. It ends with its standard input; the parent sees to it that it does so also in
the middle of an answer (`trial.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TextIO

from ascent.rollout.engines.token_times import TokenTimes, latency
from ascent.tuning.probe import Group, Limits, Measured, Probe, probe_from_json
from ascent.types import RolloutRequest

if TYPE_CHECKING:
    from ascent.rollout.engines.colocated import ColocatedEngine


def main() -> None:
    """Answer until the end."""
    from ascent.host.process import quieten_transformers, set_up_process

    asked, answers = sys.stdin, _own_standard_output()
    set_up_process()
    quieten_transformers()
    child = _Child()
    for line in asked:
        request = json.loads(line)
        if request["do"] == "end":
            break
        print(json.dumps(_answer(child, request)), file=answers, flush=True)


def _own_standard_output() -> TextIO:
    """Standard output for answers alone; what else is printed goes to standard error."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _answer(child: _Child, request: dict[str, Any]) -> dict[str, Any]:
    """The answer, or why the settings were refused. Any other error ends this process; its parent reads the log."""
    from ascent import devices
    from ascent.errors import InputError

    does: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
    does = {"look": child.look, "open": child.open, "probe": child.probe}
    try:
        return {"ok": True, **does[request["do"]](request)}
    except InputError as error:
        why = "memory" if devices.says_out_of_memory(str(error)) else "refused"
        return {"ok": False, "why": why, "text": str(error)}


class _Child:
    """The engine of this process, once it is open."""

    def __init__(self) -> None:
        self._engine: ColocatedEngine | None = None
        self._built = Limits(0, 0)
        self._token_times = TokenTimes()

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        """vLLM's platform, its devices, and the memory of one."""
        from ascent import devices
        from ascent.host.machine_share import usable_cores
        from ascent.rollout.platform import engine_kind
        from ascent.training.planning import this_card

        del request
        kind = engine_kind()
        count = devices.count() if kind == devices.kind() else 1
        return {"kind": kind, "devices": count, "cores": usable_cores(), "card": asdict(this_card())}

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build the engine."""
        from ascent.rollout.engine import EngineSettings
        from ascent.rollout.engines.colocated import ColocatedEngine

        begun = time.monotonic()
        settings = EngineSettings(**request["settings"])
        self._engine = ColocatedEngine(settings, token_times=self._token_times)
        self._built = Limits(settings.max_num_seqs, max(settings.max_num_batched_tokens, settings.max_model_len))
        return {"seconds": time.monotonic() - begun}

    def probe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sample, and say how it went."""
        if self._engine is None:
            raise RuntimeError("a probe before an engine is open")
        probe = probe_from_json(request)
        limits = probe.limits or self._built
        self._engine.limit(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        self._engine.forget_prompts()
        self._token_times.take()  # of what was before
        found = measure(self._engine, probe)
        first, between = self._token_times.take()
        return asdict(replace(found, first_token=latency(first), between_tokens=latency(between)))


def measure(engine: ColocatedEngine, probe: Probe) -> Measured:
    """One generation on an engine that is idle."""
    from ascent import devices
    from ascent.rollout.engine import AbortingEngine

    engine.stats()  # of what was before
    devices.reset_peak()
    lengths: dict[tuple[int, int], int] = {}
    steps: list[tuple[int, float]] = []
    begun, cut = time.monotonic(), False
    for requests in _waves(probe):
        if cut:
            break
        engine.submit(requests)
        while running := engine.unfinished():
            before = time.monotonic()
            done = engine.poll()
            if probe.steps:
                most = probe.limits.max_num_seqs if probe.limits is not None else running
                steps.append((min(running, most), time.monotonic() - before))
            cut = probe.until is not None and time.monotonic() - begun > probe.until and engine.unfinished() > 0
            if cut:
                assert isinstance(engine, AbortingEngine)
                done += engine.abort()
            for completion in done:
                group, _, index = completion.group_id.partition("-")
                lengths[int(group), int(index)] = len(completion.token_ids)
    devices.synchronize()
    seconds, use = time.monotonic() - begun, devices.use()
    return Measured(
        seconds=seconds,
        sequences=len(lengths),
        tokens=sum(lengths.values()),
        prompt_tokens=sum(len(probe.groups[group].prompt_ids) for group, _ in lengths),
        cut=cut,
        lengths=tuple(
            tuple(lengths.get((place, index), 0) for index in range(len(group.lengths)))
            for place, group in enumerate(probe.groups)
        ),
        steps=tuple(steps),
        stats=engine.stats(),
        peak_bytes=devices.peaks()[1],
        total_bytes=use.total_bytes,
        power_watts=use.power_watts,
    )


def _waves(probe: Probe) -> Iterator[list[RolloutRequest]]:
    """What is submitted at once. A completion is a request of its own, for each has its own length."""
    each = [
        _request(probe, group, place, index)
        for place, group in enumerate(probe.groups)
        for index in range(len(group.lengths))
    ]
    size = probe.at_once or len(each)
    rest: Sequence[RolloutRequest] = each
    while rest:
        yield list(rest[:size])
        rest = rest[size:]


def _request(probe: Probe, group: Group, place: int, index: int) -> RolloutRequest:
    sampling = replace(probe.sampling, max_tokens=group.lengths[index])
    if not probe.natural:
        sampling = replace(sampling, stop_token_ids=(), extra=(("ignore_eos", True),))
    seed = 1000 * place + index if probe.seeded else None
    return RolloutRequest(f"{place}-{index}", group.prompt_ids, 1, sampling, seed)


if __name__ == "__main__":
    main()
