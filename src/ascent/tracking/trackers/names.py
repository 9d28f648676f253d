"""The trackers that a configuration names, and whether they are installed. Imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ascent.errors import InputError
from ascent.tables import nearest


@dataclass(frozen=True, slots=True)
class Known:
    """A tracker: its name in `trainer.report_to`, the module that must be there, and the packages that bring it."""

    name: str
    module: str
    packages: tuple[str, ...]


KNOWN = (
    Known("tensorboard", "tensorboard", ("tensorboard",)),
    Known("trackio", "trackio", ("trackio",)),
    Known("swanlab", "swanlab", ("swanlab",)),
    Known("wandb", "wandb", ("wandb",)),
    Known("mlflow", "mlflow", ("mlflow-skinny", "sqlalchemy", "alembic")),
)


def named(report_to: Any) -> list[Known]:
    """Those of a setting `trainer.report_to`: a name, a list of them, `all` (what is installed), `none`, or nothing.
    Other trackers of transformers are not among them."""
    wanted = {str(name) for name in (report_to if isinstance(report_to, list | tuple) else [report_to])}
    if "all" in wanted:
        return [known for known in KNOWN if is_installed(known)]
    return [known for known in KNOWN if known.name in wanted]


def check_names(wanted: Iterable[str], others: Iterable[str]) -> None:
    """Raise InputError for a name that is neither one of `KNOWN` nor of `others`, which transformers has."""
    known = sorted({each.name for each in KNOWN} | set(others))
    for name in wanted:
        if name not in known:
            raise InputError(
                f"trainer.report_to names {name!r}, which is no tracker{nearest(name, known)}",
                f"Known are {', '.join(known)}.",
            )


def is_installed(known: Known) -> bool:
    """Whether its module can be found. A folder of its name, such as W&B leaves where it ran, is none."""
    spec = importlib.util.find_spec(known.module)
    return spec is not None and spec.origin is not None


def check_installed(trackers: Iterable[Known]) -> None:
    """Raise InputError that names those which aren't there, before anything has begun."""
    missing = [known for known in trackers if not is_installed(known)]
    if missing:
        packages = " ".join(package for known in missing for package in known.packages)
        raise InputError(
            f"trainer.report_to names {', '.join(known.name for known in missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            f"pip install {packages} (requirements/trackers.txt has versions that were tried), or leave it out.",
        )
