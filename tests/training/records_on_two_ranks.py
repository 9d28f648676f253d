"""Records of two ranks, for test_two_ranks: scenarios that `two_ranks.py` runs in both processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.small_trainer import Memory, make_trainer, vowels

Write = Callable[..., None]  # of a scenario: its name, how it ended, and what else there is to tell


def recorded(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Groups of four, three in a generation, of which each rank has six completions: one group is on both."""
    memory = Memory()
    settings = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "max_steps": 2}
    make_trainer(policy, folder / "recorded", memory, reward=vowels, **settings).train()
    records = [record for _, generation, _ in memory.generations for record in generation]
    write(
        "recorded",
        None,
        completions=[[each.group_id, each.reward, each.signal, len(each.completion_ids)] for each in records],
        steps=[[dict(step.metrics), step.signal_groups] for step in memory.steps],
    )


def moved(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Rows are dealt out to ranks by what they cost; the trainer's log-probabilities come from the training forward of
    whichever rank computed them, and stand in the records of the one that sampled them."""
    import torch
    from tests.training.batches.scripted_sampling import Script, ScriptedEngine, score
    from tests.training.batches.windows import ALL_SAVINGS, policy_logps

    logps = policy_logps(policy)
    memory = Memory()
    settings = {**ALL_SAVINGS, "per_device_train_batch_size": 8, "max_steps": 1, "max_completion_length": 12}
    engine = ScriptedEngine(Script(logps))
    trainer = make_trainer(policy, folder / "moved", memory, reward=score, engine=engine, verify=False, **settings)
    trainer.train()
    differences, silent = [], []
    for _, generation, _ in memory.generations:
        for record in generation:
            if record.trainer_logps is None:
                silent.append(record.advantage)
                continue
            both = torch.tensor([[*record.prompt_ids, *record.completion_ids.tolist()]])
            own = logps(both, torch.ones_like(both), len(record.completion_ids))[0]
            differences.append(float((own - torch.tensor(record.trainer_logps)).abs().max()))
    write("moved", None, differences=differences, silent=silent)


SCENARIOS = (recorded, moved)
