"""What is asked of a cluster when it is checked: for a run, or for none yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascent import config as configuration
from ascent.cluster.layout import JUDGED
from ascent.config import RunConfig
from ascent.config.file import of_arguments
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.errors import InputError

_ANY_MODEL = "builtin:starter"  # a configuration has one; here it isn't looked at


@dataclass(frozen=True, slots=True)
class Asked:
    """`sandbox`: where programs are judged (None: nowhere); `model`: a folder or hub name; `run`: a folder that all
    nodes should share."""

    section: ClusterSection
    sandbox: SandboxSection | None
    model: str | None = None
    run: Path | None = None


def of_run(config: RunConfig, run: Path | None = None) -> Asked:
    """What a run needs of its cluster. `run` is its directory; default: where it will be made."""
    built_in = config.model.path.startswith("builtin:")  # made on each node, by its seed
    judged = any(each.function == JUDGED for each in config.reward.functions)
    return Asked(
        config.cluster,
        config.sandbox if judged else None,
        None if built_in else config.model.path,
        run or Path(config.tracking.folder),
    )


def asked_of(words: Sequence[str], run: Path | None) -> Asked:
    """What the command line asks: a run's file and settings of it, or settings of the cluster alone (`cluster.address`
    and the like). The address is `auto` unless it is given. Raises InputError for other words."""
    if words and "=" not in words[0]:
        config, _ = configuration.load(Path(words[0]), words[1:])
        asked = of_run(config, run)
    else:
        wrong = [word for word in words if not word.startswith(("cluster.", "sandbox."))]
        if wrong:
            raise InputError(
                f"{wrong[0]}: without a run's file the settings are those of the sections cluster and sandbox",
                "Give the file first, or leave the setting out.",
            )
        config, _ = configuration.settled(of_arguments({"model": {"path": _ANY_MODEL}}, words))
        asked = Asked(config.cluster, config.sandbox, run=run)
    if asked.section.address is None:
        asked = replace(asked, section=asked.section.model_copy(update={"address": "auto"}))
    return asked
