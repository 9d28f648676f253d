"""How much memory a training takes, before it is started and after it was measured. Usable alone; needs no torch.

from ascent.memory import Batch, Engine, Layout, Settings, Trained, plan
print(plan("Qwen/Qwen2.5-7B-Instruct", "910B3", Settings(trained=Trained(lora=16, dtype="bfloat16"))).verdict)
"""

from ascent.memory.cards import Card, card, cards
from ascent.memory.config_json import known_models, model_of, read_model
from ascent.memory.model import Model
from ascent.memory.phases import Phase
from ascent.memory.plan import Plan, plan
from ascent.memory.settings import Batch, Engine, Layout, Penalty, Settings, Trained

__all__ = [
    "Batch",
    "Card",
    "Engine",
    "Layout",
    "Model",
    "Penalty",
    "Phase",
    "Plan",
    "Settings",
    "Trained",
    "card",
    "cards",
    "known_models",
    "model_of",
    "plan",
    "read_model",
]
