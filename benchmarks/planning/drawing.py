"""Settings drawn by seed: small models of several architectures, and trainings of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from ascent.memory import Batch, Engine, Model, Penalty, Settings, Trained, model_of

# Calibrated on one set of architectures and sizes, judged on another: no model is in both. "gpro" is the grid's models,
# trained with a second gradient.
FAMILIES = {"calibration": ("llama", "qwen3", "mixtral"), "grid": ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe")}
WIDTHS = {"calibration": (160, 224, 288), "grid": (128, 192, 256, 320)}
VOCABULARIES = {"calibration": (700, 5000, 40000), "grid": (512, 1024, 8000, 33000)}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One training: the model's `config.json`, and its settings."""

    number: int
    config: dict[str, Any]
    settings: Settings

    @property
    def model(self) -> Model:
        return model_of(self.config, name=f"drawn {self.number}", source=f"setting {self.number}")


def draw(which: str, seed: int, count: int) -> list[Drawn]:
    """`count` trainings of the set `which` ("calibration", "grid" or "gpro")."""
    return [_one(which, number, random.Random(f"{which}/{seed}/{number}")) for number in range(count)]


def _one(which: str, number: int, random_: random.Random) -> Drawn:
    models = "grid" if which == "gpro" else which
    family = FAMILIES[models][number % len(FAMILIES[models])]
    hidden = random_.choice(WIDTHS[models])
    heads = hidden // 32
    config: dict[str, Any] = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": random_.randint(3, 8),
        "num_attention_heads": heads,
        "num_key_value_heads": random_.choice([each for each in (heads, heads // 2, 1) if each and heads % each == 0]),
        "head_dim": 32,
        "intermediate_size": hidden * random_.choice((2, 3, 4)),
        "vocab_size": random_.choice(VOCABULARIES[models]),
        "tie_word_embeddings": random_.random() < 0.5,
        "max_position_embeddings": 1024,
    }
    if family == "mixtral":
        config |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if family == "qwen3_moe":
        config |= {
            "num_experts": random_.choice((4, 8)),
            "num_experts_per_tok": 2,
            "moe_intermediate_size": hidden,
            "decoder_sparse_step": 1,
        }
    settings = _settings(random_)
    return Drawn(number, config, _penalized(settings, random_, config) if which == "gpro" else settings)


def _penalized(settings: Settings, random_: random.Random, config: dict[str, Any]) -> Settings:
    """Trained with GPRO as it can be: adapters have no norms, half-precision weights are refused, and where experts are
    balanced micro-batches aren't parted."""
    trained, engine = settings.trained, settings.engine
    if trained.lora is None:
        trained, engine = replace(trained, dtype="float32"), replace(engine, dtype="float32")
    moves: Any = random_.choice(("all", "without_embeddings", "norms" if trained.lora is None else "all"))
    parted = random_.random() < 0.4 and "num_experts" not in config
    penalty = Penalty(moves, fraction=0.5 if parted else 1.0, searches=random_.random() < 0.5)
    return replace(settings, trained=replace(trained, penalty=penalty), engine=engine)


def _settings(random_: random.Random) -> Settings:
    group = random_.choice((4, 8))
    batch = Batch(
        prompt=random_.choice((16, 48, 96, 160)),
        completion=random_.choice((16, 32, 64, 96)),
        micro_batch=group * random_.choice((1, 2)),
        accumulation=random_.choice((1, 2)),
        group=group,
        budget=random_.choice((0, 0, None)),
        shared_prompt=random_.random() < 0.6,
    )
    if batch.budget == 0 and random_.random() < 0.4:
        batch = replace(batch, budget=batch.length * random_.choice((2, 3)))
    dtype, autocast = random_.choice((("float32", False), ("float32", True), ("bfloat16", True), ("bfloat16", False)))
    trained = Trained(
        dtype=dtype,
        autocast=autocast,
        lora=random_.choice((None, None, 4, 16)),
        optimizer=random_.choice(("adamw_torch_fused", "adamw_torch", "sgd")),
        reference=random_.random() < 0.25,
        checkpointing=random_.random() < 0.5,
        scores=False,  # each optimizer step trains on whole generations, once
    )
    return Settings(trained, batch, Engine(kind="transformers", dtype=dtype))
