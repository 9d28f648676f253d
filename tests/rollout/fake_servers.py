"""Stand-ins for vLLM's servers: the real guard over an application that samples by arithmetic, in threads."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from tests.free_port import free_port

from ascent.rollout.in_vllm.guard import GENERATE, Guard, Receive, Scope, Send
from ascent.rollout.service.address import ServiceAddress
from ascent.rollout.weights.control import ControlPlane, NoServerReachedError, ServerCallError

TOKEN = "token-of-the-stand-ins"
MAX_LEN = 64
ABORT = "/abort_requests"
BEGUN = 2  # tokens that are there when a request is broken off
METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{{engine="0",model_name="a b"}} 3.0
vllm:num_requests_waiting{{engine="0"}} 2.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
vllm:num_preemptions_total{{engine="0"}} {n}
vllm:prefix_cache_queries_total{{engine="0"}} {n}0.0
vllm:prefix_cache_hits_total{{engine="0"}} {n}
vllm:time_to_first_token_seconds_sum{{engine="0"}} {n}
vllm:time_to_first_token_seconds_count{{engine="0"}} {n}0.0
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} 7.0
"""


def tokens_of(body: Mapping[str, Any]) -> list[int]:
    """What the stand-in samples: it depends on prompt and seed only."""
    start = sum(body["token_ids"]) + (body["sampling_params"]["seed"] or 0)
    return [(start + position) % 50 for position in range(4)]


class FakeServer:
    """One server at a fixed port that can be stopped, started anew, and told how to behave.

    `behave` may answer a sampling request itself: it gets the request's JSON and gives (status, content), or None for
    the usual answer. `sampled` and `controls` are what arrived, over all incarnations.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._token_file = folder / "token"
        self._token_file.write_text(TOKEN)
        self.port = free_port()
        self.behave: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None
        self.gate = threading.Event()  # sampling waits for it
        self.gate.set()
        self.delay = 0.0
        self.sampled: list[dict[str, Any]] = []
        self.controls: list[str] = []
        self.control_status = 200
        self.control_message = "as told"
        self.aborted: set[str] | None = None  # ids of requests; None: it has no such route
        self.control_failures: list[int] = []  # statuses of the next control calls; 0 resets the connection
        self.metrics_n = 1
        self._server: uvicorn.Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start a new incarnation."""
        settings = {
            "model": "stand-in",
            "max_model_len": MAX_LEN,
            "token_file": str(self._token_file),
            "open_metrics": True,
        }
        self.guard = Guard(self._app, settings)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.guard,
                host="127.0.0.1",
                port=self.port,
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=0,
            )
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), f"no server at port {self.port}"
            time.sleep(0.005)

    def stop(self) -> None:
        """As if it was killed: connections break."""
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._server = None

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive()).get("more_body") or message.get("body"):
            body += message["body"]
            if not message.get("more_body"):
                break
        path = scope["path"]
        if path == "/metrics":
            return await _respond(send, 200, METRICS.format(n=self.metrics_n).encode(), b"text/plain")
        if path == ABORT and self.aborted is None:
            return await _respond(send, 404, b'{"detail": "Not Found"}')
        if path == ABORT and self.aborted is not None:
            self.aborted |= set(json.loads(body)["request_ids"])
            return await _respond(send, 200, b"{}")
        if path != GENERATE:
            self.controls.append(path)
            status = self.control_failures.pop(0) if self.control_failures else self.control_status
            if status == 0:
                return send.__self__.transport.abort()  # type: ignore[attr-defined]  # uvicorn's own cycle
            return await _respond(send, status, json.dumps({"message": self.control_message}).encode())
        request = json.loads(body)
        self.sampled.append(request)
        while not self.gate.is_set():
            if f"generate-tokens-{request['request_id']}" in (self.aborted or ()):
                content = _choice(tokens_of(request)[:BEGUN], "abort")
                return await _respond(send, 200, json.dumps(content).encode())
            await asyncio.sleep(0.005)
        await asyncio.sleep(self.delay)
        status, content = self.behave(request) or (200, _choice(tokens_of(request)))
        await _respond(send, status, json.dumps(content).encode())


def _choice(token_ids: list[int], reason: str = "stop") -> dict[str, Any]:
    content = [{"token": f"token_id:{token}", "logprob": -token / 10, "top_logprobs": []} for token in token_ids]
    return {
        "choices": [{"index": 0, "finish_reason": reason, "token_ids": token_ids, "logprobs": {"content": content}}]
    }


async def _respond(send: Send, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


class SilentListener:
    """Takes connections at a port and never answers: a server that hangs, or a connection that is half open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", port), backlog=100)

    def close(self) -> None:
        self._socket.close()


@dataclass
class PostsOnce:
    """A delivery that makes one control call to each server."""

    delivered: list[tuple[int, list[str]]] = field(default_factory=list)
    during: Callable[[], None] = lambda: None
    failed: dict[str, Exception] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"send": 0.25})
    closed: bool = False

    def close(self) -> None:
        self.closed = True

    def deliver(self, replicas: Sequence[ControlPlane], named_tensors: Any, version: int, canary: Any) -> PostsOnce:
        self.during()
        self.failed = {}
        for replica in replicas:
            try:
                replica.post("/update_weights", {"update_info": {}}, timeout=20.0)
            except ServerCallError as error:
                self.failed[replica.url] = error
        if replicas and len(self.failed) == len(replicas):
            raise NoServerReachedError(self.failed)
        self.delivered.append((version, [replica.url for replica in replicas if replica.url not in self.failed]))
        return self


def address_of(*servers: FakeServer, folder: Path | None = None, token: str = TOKEN) -> ServiceAddress:
    """The address of a service of stand-ins."""
    return ServiceAddress("stand-ins", tuple(server.url for server in servers), token, folder)
