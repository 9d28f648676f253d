"""A folder that is shared or isn't, and neighbours that reach each other or don't."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.cluster.checking.asked import asked_of
from ascent.cluster.checking.reaching import Listener, reach
from ascent.cluster.checking.shared_folder import answer, check_shared
from ascent.errors import InputError
from tests.free_port import free_port


def test_a_shared_folder_is_proven_and_left_as_it_was(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "not-yet"
    (tmp_path / "kept").write_text("x")
    (found,) = check_shared(run, lambda folder: {name: (name, answer(folder, name)) for name in ("a", "b")})
    assert (found.rule, found.level) == ("A911", "ok")
    assert str(tmp_path) in found.what
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def elsewhere(folder: Path, place: Path) -> Path:
    """The folder as another machine has it, with a disk of its own at the same path."""
    other = place / folder.name
    other.mkdir(parents=True)
    return other


def test_a_folder_on_another_disk_is_found(tmp_path: Path) -> None:
    def ask(folder: Path) -> dict[str, tuple[str, str]]:
        return {"here": ("a", answer(folder, "a")), "there": ("b", answer(elsewhere(folder, tmp_path / "b"), "b"))}

    (found,) = check_shared(tmp_path / "run", ask)
    assert (found.rule, found.level) == ("A911", "error")
    assert "isn't shared with there" in found.what
    assert "No such file" in found.evidence[0]
    assert found.mend


@pytest.mark.parametrize("fault", ["another file", "not written", "copied one way", "read only"])
def test_what_only_looks_shared_is_found(fault: str, tmp_path: Path) -> None:
    def ask(folder: Path) -> dict[str, tuple[str, str]]:
        nonce = (folder / "asked").read_text()
        if fault == "another file":
            return {"node": ("a", "0" * 32)}
        if fault == "copied one way":  # as by a mirror that is filled from here
            other = elsewhere(folder, tmp_path / "mirror")
            (other / "asked").write_text(nonce)
            return {"node": ("a", answer(other, "a"))}
        if fault == "read only":
            return {"node": ("a", "error: [Errno 30] Read-only file system")}
        return {"node": ("a", nonce)}

    (found,) = check_shared(tmp_path, ask)
    assert found.level == "error"


def test_a_folder_that_cant_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match="can't be written: Read-only"):
        check_shared(tmp_path, lambda folder: {})


@pytest.fixture
def listener() -> Iterator[Listener]:
    port = free_port()
    opened = Listener("127.0.0.1", range(port, port + 50))
    yield opened
    opened.close()


def test_a_listener_is_reached(listener: Listener) -> None:
    assert [reach("127.0.0.1", listener.port, word) for word in ("a", "b")] == ["", ""]


def test_a_closed_listener_gives_up_its_port(listener: Listener) -> None:
    listener.close()
    assert "refused" in reach("127.0.0.1", listener.port, "a")
    again = Listener("127.0.0.1", range(listener.port, listener.port + 1))
    assert reach("127.0.0.1", again.port, "a") == ""
    again.close()


def test_a_taken_port_is_passed_over_and_no_port_is_refused(listener: Listener) -> None:
    with pytest.raises(InputError, match="none of the ports"):
        Listener("127.0.0.1", range(listener.port, listener.port + 1))
    other = Listener("127.0.0.1", range(listener.port, listener.port + 20))
    assert other.port > listener.port
    other.close()


def test_somebody_else_at_the_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"SSH-2.0")

        thread = threading.Thread(target=serve)
        thread.start()
        assert "somebody else" in reach("127.0.0.1", server.getsockname()[1], "a")
        thread.join()


def test_silence_at_the_port_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.cluster.checking.reaching._SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "no answer" in reach("127.0.0.1", server.getsockname()[1], "a")


def test_what_is_asked_without_a_file(tmp_path: Path) -> None:
    asked = asked_of([], None)
    assert (asked.section.address, asked.model, asked.run) == ("auto", None, None)
    asked = asked_of(["cluster.address=10.0.0.1:6379", "sandbox.require=none"], tmp_path)
    assert asked.section.address == "10.0.0.1:6379"
    assert asked.sandbox is not None
    assert (asked.sandbox.require, asked.run) == ("none", tmp_path)
    with pytest.raises(InputError, match="without a run's file"):
        asked_of(["trainer.max_steps=1"], None)
    with pytest.raises(InputError, match="no such file"):
        asked_of([str(tmp_path / "none.yaml")], None)


def test_what_is_asked_for_a_run(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: {tmp_path}}}\ntracking: {{folder: {tmp_path}/runs}}\n")
    asked = asked_of([str(file), "cluster.interface=eth0"], None)
    assert (asked.model, asked.run, asked.section.interface) == (str(tmp_path), tmp_path / "runs", "eth0")
    assert asked.sandbox is not None
    file.write_text("model: {path: 'builtin:starter'}\n")
    assert asked_of([str(file)], None).model is None
