"""transformers 5.5 saves no model at the end of an FSDP run, and says nothing.

`Trainer.save_model` writes one only when the plug-in's `state_dict_type` is FULL_STATE_DICT, and FSDP2's default is
SHARDED_STATE_DICT. transformers 5.17 sets it to FULL_STATE_DICT itself.
"""

from __future__ import annotations

from typing import Any


def save_whole_model(accelerator: Any) -> None:
    """Let the next `save_model` gather the shards into one model. No-op without FSDP."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        plugin.set_state_dict_type("FULL_STATE_DICT")
