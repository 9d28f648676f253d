"""Figures in any trainer's form that show a failing run without a word; good runs in the same forms show none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ascent.environment import faults


def megatron(name: str, values: Sequence[float]) -> str:
    return "".join(
        f" iteration {10 * i:5}/ 900 | consumed samples: {i * 960} | {name}: {value:.6E} | loss scale: 4096.0 |\n"
        for i, value in enumerate(values, 1)
    )


def verl(name: str, values: Sequence[float]) -> str:
    return "".join(
        f"(TaskRunner pid=9) step:{i} - {name}:{value:.3f} - training/epoch:0.0\n" for i, value in enumerate(values, 1)
    )


def printed(name: str, values: Sequence[float]) -> str:
    return "".join(f"{{'{name}': {value}, 'epoch': 0.{i}}}\n" for i, value in enumerate(values, 1))


def table(name: str, values: Sequence[float]) -> str:
    return f"step  {name}  lr\n" + "".join(f"{i}  {value}  0.001\n" for i, value in enumerate(values, 1))


CLIMB, FALL = [2.0, 2.4, 3.1, 4.4, 6.0, 8.5], [8.5, 6.0, 4.4, 3.1, 2.4, 2.0]
FORMS = [(megatron, "lm loss"), (printed, "loss"), (table, "loss"), (verl, "train/loss")]


def fault(log: str) -> str:
    return "".join(each.fault for each in faults.diagnose_text(log).diagnoses if each.role == "primary")


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_loss_that_climbs_is_seen_in_every_form(form: Callable[[str, Sequence[float]], str], name: str) -> None:
    assert fault(form(name, CLIMB)) in ("loss-climbs", "loss-collapsed")
    assert fault(form(name, FALL)) == ""


def test_loss_that_wavers_is_no_climb() -> None:
    assert fault(printed("loss", [1.2, 0.9, 1.5, 1.1, 1.4, 0.8, 1.3, 1.0, 1.6, 1.1, 1.5])) == ""


def test_rewards_without_difference() -> None:
    row = "step:{} - critic/score/mean:0.5 - critic/advantages/max:{} - critic/advantages/min:{}\n"
    assert fault(row.format(3, "0.000", "0.000")) == "no-reward-signal"
    assert fault(row.format(3, "1.780", "-1.780")) == ""
    assert fault(printed("reward", [0.0] * 6)) == "no-reward-signal"


def test_not_finite_in_other_words() -> None:
    assert fault("step:4 - actor/pg_loss:nan - actor/grad_norm:nan\n") != ""
    assert fault(megatron("number of nan iterations", [0, 0, 2])) == "nan-grad-grpo"


def test_slow_steps_and_growing_memory() -> None:
    assert fault(verl("timing_s/step", [20.0] * 6 + [90.0] * 6)) == "gets-slower"
    assert fault(verl("timing_s/step", [20.0, 24.0] * 6)) == ""
    assert fault(verl("perf/cpu_memory_used_gb", [90.0 + 6 * i for i in range(8)])) == "host-memory-grows"
    assert fault(verl("perf/cpu_memory_used_gb", [90.0, 91.0, 90.5, 91.2, 90.4, 91.1])) == ""


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account\n", "Slurm"),
        ("frobtool: error: cannot open device_map\n", "device_map"),
        ("h:1:2 [0] net.cc:1 NCCL WARN NET/Socket : connection timed out\n", "link"),
        ("[ERROR] GE(12,python):2026-01-01-10:00:00 [x.cc:1]12 Check: no kernel for it\n", "compiler"),
        (
            'Traceback (most recent call last):\n  File "/v/lib/python3.11/site-packages/frob/core.py", line 3, in f\n'
            "    frob(self.args.frob_size)\nfrob.errors.FrobError: odd\n",
            "frob_size",
        ),
    ],
)
def test_error_that_no_entry_knows_is_told_by_who_says_it(log: str, word: str) -> None:
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert word in primary.cause
    assert primary.mend


STEPS = "".join(f"{{'loss': 2.{i}, 'global_step': {i}00}}\n" for i in range(1, 6))


@pytest.mark.parametrize(
    "end",
    [
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2919043 closing signal SIGHUP\n",
        "./train.sh: line 26: 83541 Killed                  python train.py --config c.yaml\n",
        "run.sh: line 7:  4410 Segmentation fault      python train.py\n",
    ],
)
def test_a_run_that_a_signal_ended_is_not_healthy(end: str) -> None:
    assert faults.diagnose_text(STEPS).verdict == "healthy"
    assert faults.diagnose_text(STEPS + end).verdict in ("unknown", "fault")


def test_steps_without_any_gradient_are_no_work() -> None:
    def log(norm: str) -> str:
        return "".join(f"{{'loss': 0.0{i}, 'grad_norm': {norm}, 'global_step': {i}0}}\n" for i in range(1, 6))

    assert faults.diagnose_text(log("0.25")).verdict == "healthy"
    assert faults.diagnose_text(log("0.0")).verdict == "unjudged"


def test_one_step_whose_groups_are_all_alike_is_enough() -> None:
    step = "{'loss': 0.0, 'grad_norm': 1.9, 'zero_var_ratio': %s, 'reward': 0.0, 'reward_std': 0.0, 'epoch': 0.09}\n"
    assert fault(step % "1.0")
    assert not fault(step % "0.5")
