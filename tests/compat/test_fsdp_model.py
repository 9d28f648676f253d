"""Which transformers have the fault (drop the module with the last of them), and that the mend works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.compat.fsdp_model import save_whole_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def test_transformers_5_5_leaves_the_type_to_accelerate(tmp_path: Path) -> None:
    import transformers
    from packaging.version import Version

    arguments: Any = transformers.TrainingArguments(
        str(tmp_path), fsdp="full_shard", fsdp_config={"fsdp_version": 2}, use_cpu=True, report_to="none"
    )
    full = arguments.fsdp_plugin_args.get("state_dict_type") == "FULL_STATE_DICT"
    assert full == (Version(transformers.__version__) >= Version("5.17"))


def test_shards_are_gathered_after_the_mend() -> None:
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    assert "SHARDED" in str(plugin.state_dict_type)
    save_whole_model(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    assert str(plugin.state_dict_type) == "StateDictType.FULL_STATE_DICT"
    save_whole_model(SimpleNamespace(state=SimpleNamespace()))
