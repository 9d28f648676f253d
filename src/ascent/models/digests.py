"""SHA-256 digests of model folders: which weights are these?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WEIGHT_FILES = ("*.safetensors", "*.bin")  # the second where the first is absent
TOKENIZER_FILES = (
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.tiktoken",
    "spiece.model",
)
_CONFIG_FILES = ("config.json", "generation_config.json", "adapter_config.json", "*.index.json")


def weights_digest(folder: Path) -> str:
    """Of the weight files alone, by name and content, so that it stays when a model card or a template is edited."""
    return _digest(weight_files(folder))


def model_digest(folder: Path) -> str:
    """Of everything that decides what the model computes and what its tokenizer does; adapter folders too."""
    return _digest([*weight_files(folder), *matching(folder, (*_CONFIG_FILES, *TOKENIZER_FILES))])


def tokenizer_and_sizes_digest(folder: Path) -> str:
    """Of what can be read at once: configuration and tokenizer by content, weights by name and size."""
    sizes = json.dumps([(file.name, file.stat().st_size) for file in weight_files(folder)])
    small = _digest(matching(folder, (*_CONFIG_FILES, *TOKENIZER_FILES)))
    return f"sha256:{hashlib.sha256((small + sizes).encode()).hexdigest()}"


def weight_files(folder: Path) -> list[Path]:
    """The files that hold weights: safetensors, or where there are none the older format."""
    return matching(folder, WEIGHT_FILES[:1]) or matching(folder, WEIGHT_FILES[1:])


def matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of a folder that one of the patterns names, by name."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def _digest(files: list[Path]) -> str:
    with ThreadPoolExecutor(4) as threads:  # hashing lets other threads run
        digests = list(threads.map(_of_file, files))
    listed = sorted({file.name: digest for file, digest in zip(files, digests, strict=True)}.items())
    return f"sha256:{hashlib.sha256(json.dumps(listed).encode()).hexdigest()}"


def _of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
