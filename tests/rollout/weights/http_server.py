"""A real vLLM server in processes of its own, started as an operator would, and the calls to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.free_port import free_port

from ascent.rollout.in_vllm.plugin import SHM_BACKEND, WORKER_EXTENSION
from ascent.rollout.weights.control import ServerCallError

ROOT = Path(__file__).resolve().parents[3]


class HttpServer:
    """A ControlPlane over HTTP; with `start`, the server too."""

    def __init__(self, url: str, vllm_version: str = "") -> None:
        import httpx

        self._url = url
        # No connection is kept: the server closes idle ones, sometimes just when they are used again.
        self._client = httpx.Client(base_url=url, limits=httpx.Limits(max_keepalive_connections=0))
        self._version = vllm_version
        self._process: subprocess.Popen[Any] | None = None

    @classmethod
    def start(cls, folder: Path, dtype: str, log: Path, *, arguments: tuple[str, ...] = (), **more: str) -> HttpServer:
        port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--dtype", dtype, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "64"]
        command += ["--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(16 * 2**20)]
        command += ["--enable-scale-out"]  # /inference/v1/generate
        command += ["--weight-transfer-config", json.dumps({"backend": SHM_BACKEND})]
        command += ["--worker-extension-cls", WORKER_EXTENSION, *arguments]
        variables = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", **more}
        variables["PYTHONPATH"] = str(ROOT / "src")
        variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        server = cls(f"http://127.0.0.1:{port}")
        with log.open("wb") as output:
            server._process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        server._wait(log)
        return server

    def _wait(self, log: Path) -> None:
        assert self._process is not None
        end = time.monotonic() + 1200
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{log.read_text()[-3000:]}")
            try:
                self._version = self.get("/version", timeout=10)["version"]
                return
            except ServerCallError:
                time.sleep(0.2)
        raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")

    @property
    def url(self) -> str:
        return self._url

    @property
    def vllm_version(self) -> str:
        return self._version

    @property
    def process(self) -> subprocess.Popen[Any]:
        assert self._process is not None
        return self._process

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        return self._call("POST", route, timeout, body)

    def get(self, route: str, *, timeout: float) -> Any:
        return self._call("GET", route, timeout)

    def _call(self, method: str, route: str, timeout: float, body: Mapping[str, Any] | None = None) -> Any:
        import httpx

        try:
            answer = self._client.request(method, route, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise ServerCallError(f"{route}: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise ServerCallError(f"{route}: {answer.text[:500]}", answer.status_code)
        return answer.json() if answer.content else None

    def close(self) -> None:
        self._client.close()
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
