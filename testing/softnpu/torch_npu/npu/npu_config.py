"""Options that programs for Ascend set. They have no effect on the host's kernels; what was set can be read back."""

from __future__ import annotations

from typing import Any

_options: dict[str, str] = {}


def set_option(option: dict[str, str]) -> None:
    """Remember options."""
    if not isinstance(option, dict):
        raise TypeError("npu option must be a dict.")
    _options.update(option)


def set_compile_mode(jit_compile: bool = False) -> None:
    """Whether operators are compiled when they run."""
    _options["jitCompile"] = "enable" if jit_compile else "disable"


def is_jit_compile_false() -> bool:
    """Whether set_compile_mode has turned compilation off."""
    return _options.get("jitCompile") == "disable"


class _npuConfig:  # noqa: N801
    allow_internal_format: bool = False


class _allowHF32:  # noqa: N801
    def __init__(self, allow_hf32: bool) -> None:
        self.allow_hf32 = allow_hf32

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_hf32" and not isinstance(value, bool):
            raise TypeError(f"allow_hf32 must be a bool, but got {type(value).__name__}")
        super().__setattr__(name, value)


class _allowHF32Matmul(_allowHF32):  # noqa: N801
    def __init__(self) -> None:
        super().__init__(False)


class _allowHF32Conv(_allowHF32):  # noqa: N801
    def __init__(self) -> None:
        super().__init__(True)
