"""The reward functions that a configuration names: ours, and those of other modules."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from ascent.errors import InputError
from ascent.rewards.base import RewardFunction, RewardInputs
from ascent.tables import REWARDS, load, nearest


def load_rewards(inputs: RewardInputs) -> list[RewardFunction]:
    """One function for each entry of `reward.functions`.

    An entry names a function with TRL's signature, or a class of such: it is made by its `for_run(inputs)` where it has
    one (a class method), otherwise without arguments. Raises InputError for what can't be found, made or called.
    """
    return [_load(entry.function, inputs) for entry in inputs.section.functions]


def _load(name: str, inputs: RewardInputs) -> RewardFunction:
    if ":" not in name and name not in REWARDS:
        raise InputError(
            f"reward.functions: unknown reward {name!r}{nearest(name, REWARDS)}",
            f"Known: {', '.join(REWARDS)}; others are named as module:attribute.",
        )
    found = load(REWARDS, name) if name in REWARDS else _attribute(name)
    function = found
    if inspect.isclass(found):
        function = found.for_run(inputs) if hasattr(found, "for_run") else _without_arguments(name, found)
    if not callable(function):
        raise InputError(f"reward.functions: {name} is a {type(function).__name__}, which can't be called")
    if not hasattr(function, "__name__"):
        try:
            function.__name__ = name.rpartition(":")[2]
        except AttributeError as error:
            raise InputError(
                f"reward.functions: {name} has no __name__, by which metrics and records know it", "Give it one."
            ) from error
    return function


def _without_arguments(name: str, kind: Any) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise InputError(
            f"reward.functions: {name} can't be made without arguments: {error}",
            "Give it a class method for_run(inputs) (ascent.rewards.base.RewardInputs), or name an instance.",
        ) from error


def _attribute(name: str) -> Any:
    """What `module:attribute` names. Modules are also looked for in the folder where the command was given,
    after all others."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"reward.functions: {name}: {type(error).__name__}: {error}",
            f"The module must be installed, or stand as {module_name.replace('.', '/')}.py in {os.getcwd()}.",
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise InputError(f"reward.functions: {name}: {module.__file__} has no {attribute!r}") from error
