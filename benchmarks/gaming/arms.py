"""The arms of the experiment, with the strengths that each may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEARNING_RATE = 5e-4  # the quickstart's


@dataclass(frozen=True, slots=True)
class Arm:
    """`of(strength)` gives trainer settings. Each arm with several `strengths` has its best one chosen on seeds of its
    own, all with equal effort: four strengths. `like`: the arm whose chosen strength this one takes."""

    name: str
    what: str
    strengths: Sequence[float]
    settings: Mapping[str, Any]
    varied: str = ""  # the setting that is the strength
    turned: bool = False
    like: str = ""

    def of(self, strength: float) -> dict[str, Any]:
        """GRPOConfig's settings, or GPROConfig's."""
        return {**self.settings, self.varied: strength} if self.varied else dict(self.settings)


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("grpo", "GRPO", (0.0,), {}),
        Arm("rate", "GRPO, smaller learning rate", (3.5e-4, 2.5e-4, 1.5e-4, 1e-4), {}, "learning_rate"),
        Arm("kl", "GRPO with a KL penalty", (0.04, 0.1, 0.2, 0.4), {}, "beta"),
        Arm(
            "gpro",
            "GPRO, form share",
            (0.25, 0.5, 1.0, 2.0),
            {"gradient_penalty_form": "share"},
            "gradient_penalty_strength",
        ),
        Arm(
            "turned",
            "GPRO with its sign turned",
            (0.25, 0.5, 1.0, 2.0),
            {"gradient_penalty_form": "share"},
            "gradient_penalty_strength",
            turned=True,
            like="gpro",
        ),
        Arm(
            "published",
            "GPRO, published setting (squared, radius 1e-3)",
            (1e-3, 2e-3, 5e-3, 1e-2),
            {
                "gradient_penalty_form": "squared",
                "gradient_penalty_radius": 1e-3,
                "gradient_penalty_parameters": "without_embeddings",
            },
            "gradient_penalty_strength",
        ),
    )
}
FIRST = ("grpo", "kl", "gpro", "turned")  # these have their first five seeds before the others begin
CHOOSING_SEEDS = (100, 101, 102)
