"""Trainings of the cases, by TRL's trainer and by Ascent's. What several tests need is made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        """TRL's windows of a case."""
        key = repr((case, whole))
        if key not in self._measures:
            from tests.training.batches.windows import stock_trainer

            batches = case.whole_batches if whole else case.batches
            self._measures[key] = self._windows(stock_trainer, case, batches, self.generations(case))
        return self._measures[key]

    def refusal(self, case: Case) -> str | None:
        """Why TRL refuses the case's settings, None if it takes them."""
        try:
            self.measure(case, whole=case.whole)
        except ValueError as refused:
            return str(refused)
        return None

    def ours(self, case: Case, savings: Mapping[str, Any]) -> list[Any]:
        """Ascent's windows of a case."""
        from tests.training.batches.windows import known_savings, our_trainer

        settings = {**case.batches, **known_savings(savings)}
        return self._windows(our_trainer, case, settings, self.generations(case))

    def _windows(self, make: Any, case: Case, settings: Mapping[str, Any], generations: Sequence[Any]) -> list[Any]:
        from tests.training.batches.windows import arguments, drive

        prompts = case.ragged.groups * case.generations
        keywords = {"peft_config": _adapter()} if case.lora else {}
        made = arguments(self._folder / "out", **{**case.settings, **settings})
        return drive(make(self.policy(case.policy), made, prompts=prompts, **keywords), generations)


def _adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
