"""What a repeated step showed: the first thing that wasn't finite, in words, with what to suspect."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

# In the order in which one explains the next: weights that aren't finite explain outputs, outputs explain the loss.
Kind = Literal["weights", "output", "input", "loss", "gradient", "weight gradient", "sum", "norm", "nothing"]
ORDER: tuple[Kind, ...] = (
    "weights",
    "output",
    "input",
    "loss",
    "gradient",
    "weight gradient",
    "sum",
    "norm",
    "nothing",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The first tensor that isn't finite. `where` is a module's or tensor's name; `after` the place whose gradient was
    the last finite one. `largest` is the largest finite absolute value in it."""

    kind: Kind
    where: str = ""
    after: str = ""
    nans: int = 0
    infs: int = 0
    numbers: int = 0
    largest: float = 0.0
    dtype: str = ""
    pass_number: int = 0  # from 1 on, of the step's passes; 0: of none
    rank: int = 0
    of_attention: bool = False

    def to_json(self) -> dict[str, Any]:
        """For step.json."""
        return asdict(self)

    def sentence(self) -> str:
        """What was found, in one line."""
        count = f"{self.nans} NaN and {self.infs} infinite of {self.numbers:,} numbers ({self.dtype})"
        where = self.where or "the model"
        place = f", process {self.rank}" + (f", pass {self.pass_number}" if self.pass_number else "")
        match self.kind:
            case "weights":
                return f"the weight {where} is not finite: {count}{place}"
            case "output":
                return f"the output of {where} is the first that is not finite: {count}{place}"
            case "input":
                return f"the loss was given {where} with {count}{place}; all outputs of the model are finite"
            case "loss":
                return f"the loss is not finite{place}; the outputs of the model and what it was given are"
            case "gradient":
                behind = f", that of {self.after} is" if self.after else ""
                return f"the gradient of the output of {where} is the first that is not finite: {count}{place}{behind}"
            case "weight gradient":
                return f"the gradient of the weight {where} is not finite: {count}{place}; those of all outputs are"
            case "sum":
                return f"each pass's gradients are finite, their sum is not: {where}, {count}"
            case "norm":
                return "all gradients are finite, but their norm is beyond float32"
            case "nothing":
                return "not reproducible: the same batch on the same weights gives finite gradients"

    def suspects(self) -> tuple[str, ...]:
        """What to look at, the likeliest first. The names of faults are those of docs/faults.md."""
        half = self.dtype in ("float16", "bfloat16")
        precision = (
            "precision: trainer.bf16=false (or npu_optim_level: O0) for some steps tells; `ascent replay` compares "
            "with float32 on CPU",
        )
        attention = ("the attention kernel: model.attn_implementation=eager, or sdpa",) if self.of_attention else ()
        overflow = ("overflow of float16: bfloat16 where the device has it",) if self.dtype == "float16" else ()
        match self.kind:
            case "weights":
                return ("a checkpoint or base model that was broken before: `ascent check-model`",)
            case "output" | "gradient" | "weight gradient":
                faults = ("see nan-grad-npu and nan-grad-grpo in docs/faults.md",)
                return (*overflow, *attention, *(precision if half else ()), *faults)
            case "input":
                return _OF_INPUTS.get(self.where, ("whatever made it",))
            case "loss":
                return (
                    "an importance ratio beyond float32: see sampling/sampling_logp_difference/max, and lower the "
                    "learning rate",
                )
            case "sum" | "norm":
                return ("the learning rate, and rewards of a very large scale",)
            case "nothing":
                return (
                    "the device, its driver, or a race between streams: see whether it is always the same card "
                    "(`ascent doctor`), and run once with ASCEND_LAUNCH_BLOCKING=1 (CUDA_LAUNCH_BLOCKING=1)",
                )

    def text(self) -> str:
        """Several lines, for people."""
        return "\n".join((self.sentence(), *(f"  suspect {each}" for each in self.suspects())))


_OF_INPUTS = {
    "advantages": ("rewards of a very large scale, or a reward function that divides by nothing",),
    "old_per_token_logps": ("the pass before the update: see nan-grad-npu in docs/faults.md",),
    "ref_per_token_logps": ("the reference model's weights, or its precision",),
    "importance_sampling_ratio": ("log-probabilities of sampler and trainer that lie very far apart",),
}


def gravest(findings: list[Finding]) -> Finding:
    """Of what each rank found, that which explains the others; of the lowest rank that has it."""
    return min(findings, key=lambda finding: (ORDER.index(finding.kind), finding.rank))
