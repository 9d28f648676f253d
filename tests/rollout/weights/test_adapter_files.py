"""An adapter's files as a server's worker writes them, and what can be no adapter."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.in_vllm import adapter_files
from ascent.rollout.weights.adapter_delivery import adapter_name

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASCENT_REPLICA", json.dumps({"adapter_folder": str(tmp_path / "adapters")}))
    return tmp_path / "adapters"


def piece(name: str, file: str, offset: int, data: bytes) -> dict[str, Any]:
    return {"name": name, "file": file, "offset": offset, "data": base64.b64encode(data).decode()}


def write(name: str, content: bytes = b"weights") -> None:
    adapter_files.receive(piece(name, "adapter_config.json", 0, b"{}"))
    for offset in range(0, len(content), 3):
        adapter_files.receive(piece(name, "adapter_model.safetensors", offset, content[offset : offset + 3]))


def test_pieces_become_whole_files_that_nobody_else_reads(folder: Path) -> None:
    write("run-1a2b@3", b"0123456789")
    assert (folder / "run-1a2b@3" / "adapter_model.safetensors").read_bytes() == b"0123456789"
    assert (folder / "run-1a2b@3").stat().st_mode & 0o077 == 0
    digests = adapter_files.digest("run-1a2b@3")
    assert digests["adapter_model.safetensors"] == hashlib.sha256(b"0123456789").hexdigest()


def test_a_new_version_takes_the_place_of_its_own_old_ones_only(folder: Path) -> None:
    for name in ("run-1@1", "run-12@1", "run-1@2"):
        write(name)
    assert {path.name for path in folder.iterdir()} == {"run-1@2", "run-12@1"}


def test_a_version_that_is_sent_again_begins_anew(folder: Path) -> None:
    write("run@1", b"a longer one, broken off")
    write("run@1", b"whole")
    assert (folder / "run@1" / "adapter_model.safetensors").read_bytes() == b"whole"


@pytest.mark.parametrize("name", ["", "..", "../run", "a/b", "/etc", "-x", "a b", ".hidden", "a\n", "x" * 200])
def test_names_that_lead_elsewhere_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="can't be an adapter's name"):
        adapter_files.receive(piece(name, "adapter_config.json", 0, b"{}"))
    assert not folder.exists()


@pytest.mark.parametrize("file", ["", "../token", "adapter_model.bin", "/etc/passwd"])
def test_other_files_are_refused(folder: Path, file: str) -> None:
    with pytest.raises(ValueError, match="is no file of an adapter"):
        adapter_files.receive(piece("run@1", file, 0, b"x"))
    assert not folder.exists()


@pytest.mark.parametrize("offset", [2, 8, 10**9])
def test_a_piece_that_does_not_follow_is_refused(folder: Path, offset: int) -> None:
    write("run@1", b"1234")
    with pytest.raises(ValueError, match="piece at"):
        adapter_files.receive(piece("run@1", "adapter_model.safetensors", offset, b"x"))


@pytest.mark.parametrize("training", ["run", "läuft über", "", "../../x", "a" * 500, "@1", "-"])
def test_every_trainings_name_gives_one_that_servers_take(training: str) -> None:
    from ascent.rollout.in_vllm.guard_holds import _NAME

    name = adapter_name(training, "0123456789abcdef")
    assert _NAME.match(name)
    assert name.endswith("-01234567")
