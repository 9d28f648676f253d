"""One training over the nodes of a cluster, from its start to its end: the driver, in the process of `ascent train`.

It places ranks and servers, starts them through agents, and looks after them. Where a training node is lost the others
are stopped, another place is found, and the run goes on from its last checkpoint; where a server's node is lost the
training goes on with the other servers meanwhile.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from ascent import config
from ascent.cluster.checking.checks import refuse_unfit
from ascent.cluster.connection import Cluster, connected
from ascent.cluster.held import Held, NodeLostError, give_back
from ascent.cluster.judging.actors import judges_started, variables_of
from ascent.cluster.layout import lay_out, lay_out_after_loss, wanted
from ascent.cluster.logs import Shown
from ascent.cluster.membership import HeadGoneError, Membership
from ascent.cluster.placement import Placement
from ascent.cluster.places import Layout, TrainingPlace
from ascent.cluster.ports import port_range
from ascent.cluster.ranks import JOB, Attempt, job_of, same_batch, shared_folder_proof
from ascent.cluster.serving import Servers
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.tracking import attempts
from ascent.tracking.run_directory import RunDirectory
from ascent.training.launch.restarts import (
    FAILED,
    PORT_TAKEN,
    REFUSED,
    SIGNALLED,
    Ended,
    Outcome,
    outcome_of,
    train_to_the_end,
)
from ascent.training.launch.stop_signals import listening

_LOOK = 0.3  # seconds between two looks at everything
_FREED = 2.0  # seconds in which Ray has given back what the attempt before held
_OTHERS = 5.0  # seconds in which the cause of a failure may show elsewhere


def launch(run: Path, processes: int, *, resume: bool, debug: bool, restarts: int | None = None) -> int:
    """Train with `processes` ranks on the cluster that the run's configuration names; the exit code of `ascent`.

    At most `restarts` attempts follow the first one. Raises InputError where it can't be placed.
    """
    settings, _ = config.load(RunDirectory(run).config)
    with connected(settings.cluster) as cluster, ExitStack() as stack:
        for warning in refuse_unfit(cluster, settings, run):
            print(f"warning: {warning.what}", file=sys.stderr)
        driver = Driver(cluster, settings, RunDirectory(run), processes, debug=debug)
        stack.callback(driver.close)
        stack.enter_context(listening(driver.ask_to_stop, driver.insist))
        try:
            return train_to_the_end(
                driver.run, driver.train_once, resume=resume, most=restarts or 0, sleep=driver.pause
            )
        except HeadGoneError as error:
            go_on = f"Then: ascent train --resume {run} --devices {processes}"
            raise InputError(error.message, f"{error.mend} {go_on}") from error


class Driver:
    """Holds a run's places on a cluster. `train_once` makes one attempt; `close` gives everything back."""

    def __init__(
        self, cluster: Cluster, settings: RunConfig, run: RunDirectory, processes: int, *, debug: bool
    ) -> None:
        self.run = run
        self._settings, self._debug = settings, debug
        self._wanted = wanted(settings, processes)
        self._ports = port_range(settings.cluster.ports)
        self._members = Membership(cluster)
        self._placement = Placement(self._members, settings.cluster, self.pause)
        self._shown = Shown()
        self._training: list[Held] = []
        self._servers: Servers | None = None
        self._layout: Layout | None = None  # the first one
        self._judges: dict[str, str] = {}
        self._cluster = cluster
        self._stack = ExitStack()
        self._stop = self._insists = False
        self._ports_taken: set[int] = set()

    def ask_to_stop(self) -> None:
        """Stop after the step, with a checkpoint."""
        self._stop = True

    def insist(self) -> None:
        """Stop now."""
        self._insists = True

    def close(self) -> None:
        """End everything, and give the places back."""
        give_back(self._training)
        self._members.close()
        if self._servers is not None:
            self._servers.close()
        self._stack.close()

    def train_once(self, resume: bool, why: str) -> Outcome:
        """Place the training, start it, and see it to its end."""
        outcome = None
        while outcome is None:
            try:
                outcome = self._attempt(resume, why)
            except NodeLostError as error:
                outcome = Outcome(Ended.LOST, str(error))
            except _StoppedError:
                outcome = Outcome(Ended.STOPPED, "stopped at once" if self._insists else "")
            finally:
                self._give_back_training()
        return outcome

    def pause(self, seconds: float) -> None:
        """Wait, and look after everything meanwhile. Raises _StoppedError when the user insists, or wants to stop while
        nothing is trained, and InputError when the head of the cluster is gone."""
        until = time.monotonic() + seconds
        while True:
            self._look()
            if self._insists or (self._stop and not self._training):
                raise _StoppedError
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LOOK))

    def _attempt(self, resume: bool, why: str) -> Outcome | None:
        """One start of the ranks; None: the port where they were to meet was taken, so it counts for nothing."""
        layout = self._place()
        self._check_shared()
        nodes = [held.node.address for held in self._training]
        number = attempts.begin(self.run.path, why=why, ranks=layout.ranks, nodes=nodes, accelerator=layout.kind)
        self._tell(layout, number)
        environment = self._judges | ({} if self._servers is None else self._servers.variables())
        overrides = same_batch(self._settings, self._wanted.ranks, layout.ranks)
        return self._see_to_the_end(Attempt(number, self.run, resume, self._debug, overrides, environment))

    # ---- placing --------------------------------------------------------------------------------------------------

    def _place(self) -> Layout:
        """Hold places for all at the first time, for the training alone later on."""
        if self._layout is None:
            layout, held = self._placement.hold(
                partial(lay_out, wanted=self._wanted), lambda made: (*made.training, *made.replicas)
            )
            self._layout, self._training = layout, held[: len(layout.training)]
            if layout.replicas:
                self._servers = self._place_servers(layout, held[len(layout.training) :])
        else:
            self.pause(_FREED)
            again = replace(self._wanted, replicas=0, judges=False)
            layout, self._training = self._placement.hold(
                partial(lay_out_after_loss, wanted=again, before=self._layout), lambda made: made.training
            )
        if self._layout.judges and not self._judges:
            self._start_judges(self._layout)
        return layout

    def _start_judges(self, layout: Layout) -> None:
        """In a thread: agents must be asked how they are meanwhile."""
        section, settings = self._settings.cluster, self._settings.sandbox
        judges = judges_started(layout.judges, settings, wait_minutes=section.wait_minutes)
        with ThreadPoolExecutor(1) as thread:
            started = thread.submit(self._stack.enter_context, judges)
            while not started.done():
                self.pause(_LOOK)
        self._judges = variables_of(started.result(), self._cluster)

    def _place_servers(self, layout: Layout, held: Sequence[Held]) -> Servers:
        return Servers(
            held,
            self._settings.cluster,
            self._ports,
            kind=layout.kind,
            tensor_parallel=self._wanted.tensor_parallel,
            folder=self.run.path.absolute() / "servers",
            name=self.run.path.name,
            token=secrets.token_hex(24),
            placement=self._placement,
            shown=self._shown,
        )

    def _check_shared(self) -> None:
        """Refuse a run directory that isn't the same folder on all nodes, of which some may have joined meanwhile."""
        token = secrets.token_hex(8)
        proof = shared_folder_proof(self.run.path.absolute(), token)
        try:
            blind = [held.node for held in self._training if not held.call("sees", str(proof), token)]
        finally:
            proof.unlink()
        if blind:
            raise InputError(
                f"node {', '.join(map(str, blind))}: the run directory {self.run.path.absolute()} isn't there, or is "
                "another folder",
                "Give tracking.folder a folder that all machines share, such as one on NFS.",
            )

    def _tell(self, layout: Layout, number: int) -> None:
        nodes = ", ".join(f"{place.node} ({place.ranks})" for place in layout.training)
        print(f"attempt {number}: {layout.ranks} ranks on {nodes}", file=sys.stderr, flush=True)
        if layout.ranks < self._wanted.ranks:
            more = self._wanted.ranks / layout.ranks
            print(
                f"note: fewer nodes than at first; {more:g} times as many passes make the same batch", file=sys.stderr
            )

    # ---- looking after --------------------------------------------------------------------------------------------

    def _see_to_the_end(self, attempt: Attempt) -> Outcome | None:
        """Start the ranks of all nodes, and wait for their end."""
        first = self._training[0]
        port = first.call("free_port", self._ports.start, self._ports.stop - 1, frozenset(self._ports_taken))
        for node_rank, held in enumerate(self._training):
            assert isinstance(held.place, TrainingPlace)
            held.start(job_of(held.place, node_rank, len(self._training), attempt, first.node.address, port))
        asked = False
        while True:
            self.pause(_LOOK)
            if self._stop and not asked:
                asked = True
                for held in self._training:
                    held.call("ask_to_stop", JOB)
            codes = [_code(held) for held in self._training]
            if codes[0] == PORT_TAKEN:
                self._ports_taken.add(port)
                return None
            if any(codes):
                return self._failed(attempt)
            if all(code == 0 for code in codes):
                return outcome_of(0, stopped=any(held.jobs[JOB].stopped for held in self._training))

    def _failed(self, attempt: Attempt) -> Outcome:
        """Some processes failed: why. Where a node is lost the ranks of others fail first, so look for that too."""
        until = time.monotonic() + _OTHERS
        while time.monotonic() < until:
            self.pause(_LOOK)
        failed = [held for held in self._training if _code(held)]
        codes = {_code(held) or 0 for held in failed}
        if codes == {SIGNALLED} and not self._stop:  # by somebody on that node
            codes = {FAILED}
        outcome = outcome_of(REFUSED if REFUSED in codes else max(codes), stopped=False)
        where = ", ".join(str(held.node) for held in failed)
        logs = f"{self.run.logs}/attempt{attempt.number}-*.log"
        return replace(outcome, why=f"the processes on node {where} failed; what they printed is in {logs}")

    def _look(self) -> None:
        """Everything once: servers, then the training's nodes. Raises NodeLostError for one of these."""
        alive = self._members.alive()
        if self._servers is not None:
            self._servers.look(alive)
        for held in self._training:
            held.look(self._shown, alive)
        for held in self._training:
            if held.lost is not None:
                raise NodeLostError(f"node {held.node} is lost: {held.lost}")

    def _give_back_training(self) -> None:
        self._placement.without |= {held.node.id for held in self._training if held.lost is not None}
        training, self._training = self._training, []
        give_back(training, self._look)  # servers, if there are any


class _StoppedError(RuntimeError):
    """The user wants the run to stop, and nothing is there that could stop by itself."""


def _code(held: Held) -> int | None:
    """The exit code of a place's launcher; None while it runs."""
    job = held.jobs.get(JOB)
    return None if job is None else job.code
