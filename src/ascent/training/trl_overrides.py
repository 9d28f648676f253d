"""Which methods of TRL's `GRPOTrainer` are overridden, and the source they were written against.

Each override calls TRL's own method or takes its place at a seam. When TRL changes one of them, the digest below no
longer fits: read TRL's change, adapt the override if need be, and enter the new digest. TRL may be used meanwhile with
`plain=True`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

TRL_VERSION = "1.16"
# method of trl.GRPOTrainer (or of a base class of it) -> why it is overridden, in `updating`,
# `checkpointing` or `trainer`
OVERRIDDEN: dict[str, str] = {
    "_generate_and_score_completions": "knows the rows of a batch first, or chooses them; records its completions",
    "_generate_single_turn": "samples with Ascent's engine and starts rewards; takes TRL's place",
    "_calculate_rewards": "timed; keeps each reward for the records; hands out those that dynamic sampling took",
    "_get_per_token_logps_and_entropies": "timed; the training forward's also correct against the sampler",
    "_prepare_inputs": "a sub-batch is prepared already",
    "get_batch_samples": "with staleness, knows the next generation's rows; none beyond the last step",
    "evaluation_loop": "what is sampled inside is kept apart from the training, and recorded",
    "compute_loss": "the algorithm's, which is given TRL's; weighted where it is of a sub-batch",
    "training_step": "hands micro-batches over, trains on sub-batches; timed; the algorithm may change gradients, from "
    "the same passes made again",
    "_get_grad_norm": "a step whose gradient isn't finite is skipped",
    "_maybe_log_save_evaluate": "writes the step's record before TRL clears its metrics",
    "_save_checkpoint": "adds Ascent's state; whole at any moment of a kill",
    "_load_optimizer_and_scheduler": "restores Ascent's state",
}
# what is called or read without being overridden: VLLMGeneration's walk over parameters
USED_OF_GENERATION = ("_iter_named_params", "__init__")

DIGESTS: dict[str, str] = {
    "add_fused_lm_head": "27301e73e4ace4f2",
    "_prepare_inputs": "b6f38f7a05aa4406",
    "_generate_and_score_completions": "739def7da67c5a5b",
    "_generate_single_turn": "7e2f21bdaf91a7fb",
    "_calculate_rewards": "a30f2929443bd289",
    "_get_per_token_logps_and_entropies": "31bbe58ca8ba5d47",
    "get_batch_samples": "ce1d3f8e633c3fb4",
    "evaluation_loop": "c929d29009a4e6f9",
    "compute_loss": "9fa6e158f544f732",
    "training_step": "96c133253ca1d7ee",
    "_get_grad_norm": "b2787642923d849b",
    "_maybe_log_save_evaluate": "c3945a2525b7ede2",
    "_save_checkpoint": "96c508fc0fca70f7",
    "_load_optimizer_and_scheduler": "f0236c69fcf3477c",
    "VLLMGeneration._iter_named_params": "6d5a7763acd5eb5f",
    "VLLMGeneration.__init__": "425d7d149bb74e22",
}

# those of transformers 5.5 that differ
OLDER = {"_get_grad_norm": "fa694db5e7986f0b"}


def digest(method: Callable[..., Any]) -> str:
    """A digest of a method's code: comments, docstrings, spacing and annotations don't count."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method))))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def current_digests() -> dict[str, str]:
    """The digests of the installed TRL and transformers."""
    from trl.generation.vllm_generation import VLLMGeneration
    from trl.trainer import utils
    from trl.trainer.grpo_trainer import GRPOTrainer

    digests = {name: digest(getattr(GRPOTrainer, name)) for name in OVERRIDDEN}
    digests |= {f"VLLMGeneration.{name}": digest(getattr(VLLMGeneration, name)) for name in USED_OF_GENERATION}
    digests["add_fused_lm_head"] = digest(utils.add_fused_lm_head)  # what it takes `shift_labels` and `base_model` for
    return digests
