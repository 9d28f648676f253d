"""Trainings of the cases, by TRL's trainer and by Ascent's. What several tests need is made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.training.batches.cases import Case
from tests.training.batches.policies import build_policy


class Trainings:
    """Policies, generations and TRL's windows are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._policies: dict[str, Path] = {}
        self._generations: dict[str, Any] = {}
        self._measures: dict[str, Any] = {}

    def policy(self, kind: str) -> Path:
        """The folder of a policy of that kind."""
        if kind not in self._policies:
            self._policies[kind] = build_policy(kind, self._folder / kind)
        return self._policies[kind]

    def generations(self, case: Case) -> list[Any]:
        """What the case trains on."""
        from tests.training.batches.ragged_batches import make
        from tests.training.batches.windows import policy_logps

        key = repr((case.ragged, case.policy, case.generations, case.silent))
        if key not in self._generations:
            logps = policy_logps(self.policy(case.policy))
            made = [make(case.ragged, seed, logps) for seed in range(case.generations)]
            for number in case.silent:
                made[number]["advantages"].zero_()
            self._generations[key] = made
        return self._generations[key]

    def measure(self, case: Case, *, whole: bool) -> list[Any]:
        """TRL's windows of a case: each as one micro-batch, or in the case's own."""
        key = repr((case, whole))
        if key not in self._measures:
            self._measures[key] = self._windows(case, case.whole_batches if whole else case.batches, ours=False)
        return self._measures[key]

    def logged(self, case: Case, *, computed: bool) -> Any:
        """TRL's window of all rows of a case, of whatever generation, as one micro-batch: what it logs of them.
        With `computed`, of those that have a signal."""
        from tests.training.batches.ragged_batches import together, with_signal

        rows = together(self.generations(case))
        case = replace(case, slices=1, accumulation=1, generations=1)
        return self._windows(case, case.whole_batches, ours=False, given=[with_signal(rows) if computed else rows])[0]

    def refusal(self, case: Case) -> str | None:
        """Why TRL refuses the case's settings, None if it takes them."""
        try:
            self.measure(case, whole=case.whole)
        except ValueError as refused:
            return str(refused)
        return None

    def ours(self, case: Case, savings: Mapping[str, Any], algorithm: Any = None) -> list[Any]:
        """Ascent's windows of a case; without an `algorithm`, GRPO's."""
        asked = dict(savings)
        if not case.sampled:  # how old log-probabilities are taken is decided when a generation is sampled
            asked["skip_old_logps"] = False
        return self._windows(case, {**case.batches, **asked}, ours=True, algorithm=algorithm)

    def _windows(
        self, case: Case, settings: Mapping[str, Any], *, ours: bool, given: Any = None, algorithm: Any = None
    ) -> list[Any]:
        from tests.training.batches.scripted_sampling import Script, ScriptedEngine, follow, score
        from tests.training.batches.windows import arguments, drive, our_trainer, policy_logps, stock_trainer

        folder = self.policy(case.policy)
        made = arguments(self._folder / "out", **{**case.settings, **settings})
        keywords: dict[str, Any] = {"prompts": case.ragged.groups * case.generations}
        if case.lora:
            keywords["peft_config"] = _adapter()
        if algorithm is not None:
            keywords["algorithm"] = algorithm
        if not case.sampled:
            make = our_trainer if ours else stock_trainer
            return drive(make(folder, made, **keywords), given or self.generations(case))
        script = Script(policy_logps(folder), nan=case.sampled == "nan")
        if ours:
            trainer = our_trainer(folder, made, reward=score, engine=ScriptedEngine(script), **keywords)
        else:
            trainer = stock_trainer(folder, made, reward=score, **keywords)
            follow(trainer, script)
        return drive(trainer, None)


def _adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
