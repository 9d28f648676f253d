"""The base model of an adapter: where it is now, and whether it is the one that the adapter was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ascent.errors import InputError
from ascent.models.adapters import ADAPTER_CONFIG, Adapter, is_adapter
from ascent.models.digests import weights_digest

EXPORT_FILE = "ascent_export.json"  # in a folder of weights that a run gave: where they come from
ORIGIN_FILE = "origin.json"  # in a run directory: what it started from
_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[^/]+)/?$")


@dataclass(frozen=True, slots=True)
class RecordedBase:
    """What a run wrote down about its base model: the configuration's name of it, and the digest of its weights."""

    name: str
    revision: str | None
    digest: str
    file: Path


def find_base(adapter: Adapter, by_name: Callable[[str, str | None], Path]) -> Path:
    """The folder of an adapter's base model; `by_name` finds or fetches what a name and a revision stand for.

    It is looked for where the adapter says (a relative path: from the adapter's folder, then from here), and under the
    name that the run which trained it gave it. A folder of the hub's cache that is gone, or on another machine, is
    looked for by its hub id. Raises InputError when it isn't to be had, or isn't the one that the run started from.
    """
    recorded = recorded_base(adapter.folder)
    base = _present(adapter, by_name) or _by_names(adapter, recorded, by_name)
    if recorded is not None and (found := weights_digest(base)) != recorded.digest:
        raise InputError(
            f"{adapter.folder}: it was trained on other weights than those in {base} ({found}; {recorded.file.name} "
            f"says {recorded.digest})",
            f"Name the base that it was trained on in {ADAPTER_CONFIG} (base_model_name_or_path). If it is the same "
            f"model written otherwise, take base.digest out of {recorded.file}.",
        )
    return base


def recorded_base(folder: Path) -> RecordedBase | None:
    """What the run of this folder (a model, or one of its checkpoints) wrote down about its base; None: nothing."""
    for file in (folder / EXPORT_FILE, folder.parent.parent / ORIGIN_FILE):
        if not file.is_file():
            continue
        try:
            base = json.loads(file.read_text(encoding="utf-8"))["base"]
            if base.get("digest"):
                return RecordedBase(base["name"], base.get("revision"), base["digest"], file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error
    return None


def _present(adapter: Adapter, by_name: Callable[[str, str | None], Path]) -> Path | None:
    named = Path(adapter.base).expanduser()
    for place in (adapter.folder / named, named):
        if place.resolve() == adapter.folder.resolve():
            raise InputError(
                f"{adapter.folder / ADAPTER_CONFIG}: the adapter names its own folder as its base model",
                "Set base_model_name_or_path to the folder or the hub id of the model that it was trained on.",
            )
        if is_adapter(place):  # trained on top of another one
            return by_name(str(place), None)
        if (place / "config.json").is_file():
            return place
    return None


def _by_names(adapter: Adapter, recorded: RecordedBase | None, by_name: Callable[[str, str | None], Path]) -> Path:
    tried: list[str] = []
    for name, revision in _names(adapter, recorded):
        try:
            return by_name(name, revision)
        except InputError as error:
            tried.append(error.message)
    raise InputError(
        f"{adapter.folder}: an adapter, whose base model {adapter.base!r} isn't to be had"
        + "".join(f"\n  {each}" for each in dict.fromkeys(tried)),
        f"Set base_model_name_or_path in {adapter.folder / ADAPTER_CONFIG} to where the base is: a folder (relative to "
        "the adapter's) or a hub id.",
    )


def _names(adapter: Adapter, recorded: RecordedBase | None) -> Iterator[tuple[str, str | None]]:
    if recorded is not None and Path(recorded.name).expanduser().resolve() != adapter.folder.resolve():
        yield recorded.name, recorded.revision
    snapshot = _SNAPSHOT.search(adapter.base)
    if snapshot:
        yield f"{snapshot['owner']}/{snapshot['name']}", snapshot["revision"]
    yield adapter.base, adapter.revision
