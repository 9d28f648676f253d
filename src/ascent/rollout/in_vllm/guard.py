"""Decides which requests reach a sampling server: an ASGI middleware that vLLM loads. Standard library only.

vLLM's own API key leaves its control routes open (`/update_weights`, `/collective_rpc`, `/sleep`, ...). Here everything
but `/health` needs the service's token. What isn't known to be harmless also needs the hold of whoever trains with the
server, and sampling for a training needs weights of exactly the version that the trainer names.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.rollout.in_vllm.compat import short_answers
from ascent.rollout.in_vllm.guard_holds import ReplicaHolds
from ascent.rollout.in_vllm.guard_state import LEASE_SECONDS, RefusedError, ReplicaState

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STATUS_KIND = "ascent.replica/"
SCHEMA = f"{STATUS_KIND}2"  # of the status; raised whenever a trainer of one version can't use a server of another
# JSON: model, max_model_len, max_num_seqs, token_file, open_metrics, adapters, adapter_folder
SETTINGS_VARIABLE = "ASCENT_REPLICA"
HOLD_HEADER = "x-ascent-hold"
VERSION_HEADER = "x-ascent-weights"
CANARY_HEADER = "x-ascent-canary"  # the holder looks at weights that are not open for sampling yet
GENERATE = "/inference/v1/generate"
GIVE_UP = "/ascent/weights/give_up"  # of the holder: the weights that it began won't come; it may begin others
# OpenAI's routes: people may ask a running service something with the token alone, as long as its weights are whole
_PLAIN_SAMPLING = {"/v1/completions", "/v1/chat/completions", "/v1/responses"}
_HARMLESS = {"/v1/models", "/version", "/tokenize", "/detokenize", "/metrics", "/load"}
# what the holder of an adapter may reach of vLLM's control routes: nothing that changes the base model's weights
_OF_ADAPTERS = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/abort_requests"}
_DRAIN_SECONDS = 30.0
_LARGEST_BODY = 64 * 1024  # of a request to the guard itself


@dataclass(eq=False, slots=True)
class _ControlCall:
    """A call to one of vLLM's control routes while it runs."""

    hold: str
    given_up: bool = False  # by the holder: what it waits for won't come


class Guard:
    """`vllm --middleware ascent.rollout.in_vllm.guard.Guard`; reads ASCENT_REPLICA from the environment."""

    def __init__(self, app: App, settings: dict[str, Any] | None = None, state: ReplicaState | None = None) -> None:
        settings = settings or json.loads(os.environ[SETTINGS_VARIABLE])
        self._app = app
        self._model = settings["model"]
        self._max_model_len = settings["max_model_len"]
        self._max_num_seqs = settings.get("max_num_seqs")
        self._token = Path(settings["token_file"]).read_text(encoding="ascii").strip().encode()
        self._open = {"/health"} | ({"/metrics"} if settings["open_metrics"] else set())
        self._holds = ReplicaHolds(settings.get("adapters", 0), base=state)
        self._state = self._holds.base
        # what is sampling: an event to break each request off, and the hold under which it came ("": somebody's)
        self._running: dict[asyncio.Event, str] = {}
        self._ended = asyncio.Event()  # a request has
        self._controls: set[_ControlCall] = set()
        self._stuck_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection, or pass it on to vLLM."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        path = scope["path"]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if path in self._open:
            return await self._app(scope, receive, send)
        if not self._knows(headers.get("authorization", "")):
            return await _answer(send, 401, {"code": "token", "error": "the service's token is needed"})
        hold = headers.get(HOLD_HEADER, "")
        try:
            if path.startswith("/ascent/"):
                return await _answer(send, 200, await self._own(scope["method"], path, hold, receive))
            if path == GENERATE and CANARY_HEADER in headers:
                self._holds.of(hold).check_updating(hold)
                return await self._sample(hold, scope, receive, send)
            if path == GENERATE:
                self._holds.of(hold).check_version(hold, _version(headers.get(VERSION_HEADER)))
                with short_answers.answering(short=short_answers.HEADER in headers):
                    return await self._sample(hold, scope, receive, send)
            if path in _PLAIN_SAMPLING:
                self._state.check_whole()
                return await self._sample("", scope, receive, send)
            if path not in _HARMLESS:
                self._holds.of(hold).check_hold(hold)
                if self._holds.is_adapters(hold) and path not in _OF_ADAPTERS:
                    raise RefusedError("adapter", f"{path}: not for the holder of an adapter")
                return await self._control(hold, scope, receive, send)
        except RefusedError as refused:
            return await _answer(send, 409, {"code": refused.code, "error": str(refused), **refused.facts})
        except _BadRequestError as error:
            return await _answer(send, error.status, {"code": "request", "error": str(error)})
        await self._app(scope, receive, send)

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), self._token)

    async def _own(self, method: str, path: str, hold: str, receive: Receive) -> dict[str, Any]:
        """The guard's own routes; each answers with the server's status."""
        if method == "GET" and path == "/ascent/status":
            return self._status(hold)
        if method != "POST":
            raise _BadRequestError(f"{method} {path}: no such route", 404)
        body = await _json_body(receive)
        if path == "/ascent/hold":
            taken = self._take(body)
            return {"hold": taken, **self._status(taken)}
        state = self._holds.of(hold)
        if path == "/ascent/renew":
            state.renew(hold)
        elif path == "/ascent/release":
            state.release(hold)
        elif path == "/ascent/weights/begin":
            await self._begin(hold, _version(body.get("version")))
        elif path == "/ascent/weights/commit":
            state.commit(hold, _version(body.get("version")))
        elif path == GIVE_UP:
            state.check_hold(hold)
            for call in self._controls:
                call.given_up = call.given_up or call.hold == hold
        else:
            raise _BadRequestError(f"{path}: no such route", 404)
        return self._status(hold)

    def _take(self, body: dict[str, Any]) -> str:
        holder, hold, adapter = body.get("holder"), body.get("hold"), body.get("adapter")
        texts = all(each is None or (isinstance(each, str) and each) for each in (hold, adapter))
        if not isinstance(holder, dict) or not texts:
            raise _BadRequestError(
                'expected {"holder": {"name", "pid", "host", "since"}, "hold": text or null, "adapter": text or null}'
            )
        return self._holds.take(holder, hold, adapter)

    async def _begin(self, hold: str, version: int) -> None:
        """Refuse sampling from now on, and wait until nothing is sampled any more that new weights would change: for
        the base weights all, for an adapter what its holder samples.

        Requests that are running are broken off: the holder begins an update only when its own completions are
        finished, so these are somebody's questions over OpenAI's routes.
        """
        state, alone = self._holds.of(hold), self._holds.is_adapters(hold)
        state.begin(hold, version)

        def concerned() -> list[asyncio.Event]:
            return [event for event, under in self._running.items() if not alone or under == hold]

        for broken_off in concerned():
            broken_off.set()
        until = time.monotonic() + _DRAIN_SECONDS
        while left := concerned():
            self._ended.clear()
            try:
                await asyncio.wait_for(self._ended.wait(), until - time.monotonic())
            except TimeoutError:
                state.abandon(hold)
                raise RefusedError(
                    "running", f"{len(left)} requests are still running after {_DRAIN_SECONDS:g} s"
                ) from None

    async def _control(self, hold: str, scope: Scope, receive: Receive, send: Send) -> None:
        call = _ControlCall(hold)
        self._controls.add(call)
        try:
            await self._app(scope, receive, send)
        finally:
            self._controls.discard(call)

    def _stuck_seconds(self) -> float:
        """For how long a control call has been running that nobody waits for any more; 0 when there is none.

        Such a call may never end: a worker that waits for a broadcast whose other members are gone. Counted from the
        first look on, since nothing tells the guard when a hold runs out.
        """
        stuck = any(call.given_up or not self._holds.is_held_under(call.hold) for call in self._controls)
        if not stuck:
            self._stuck_since = None
            return 0.0
        now = time.monotonic()
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        return now - self._stuck_since

    async def _sample(self, hold: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, so that `_begin` can break it off (vLLM is then told that the client went away)."""
        broken_off = asyncio.Event()
        answering = False

        async def receive_or_break() -> Message:
            message, cut = asyncio.ensure_future(receive()), asyncio.ensure_future(broken_off.wait())
            try:
                await asyncio.wait((message, cut), return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() else {"type": "http.disconnect"}
            finally:
                message.cancel()
                cut.cancel()

        async def send_unless_broken(message: Message) -> None:
            nonlocal answering
            if answering or not broken_off.is_set():
                answering = True
                await send(message)

        self._running[broken_off] = hold
        try:
            await self._app(scope, receive_or_break, send_unless_broken)
        finally:
            del self._running[broken_off]
            self._ended.set()
        if not answering:
            await _answer(send, 409, {"code": "updating", "error": "broken off: new weights are on their way"})

    def _status(self, hold: str) -> dict[str, Any]:
        """The server's, with the weights of whoever asks: an adapter's for its holder."""
        state = self._holds.of(hold)
        return {
            "schema": SCHEMA,
            "model": self._model,
            "max_model_len": self._max_model_len,
            "max_num_seqs": self._max_num_seqs,
            "incarnation": self._state.incarnation,
            "weights": {"state": state.weights, "version": state.version, "revision": state.revision},
            "holder": state.holder,
            "adapters": self._holds.facts(),
            "lease_seconds": LEASE_SECONDS,
            "running": len(self._running),
            "stuck_seconds": self._stuck_seconds(),
            "vllm": getattr(sys.modules.get("vllm"), "__version__", None),
            "sampling_parameters": _sampling_parameters(),
        }


class _BadRequestError(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def _sampling_parameters() -> list[str]:
    """The names that this vLLM's SamplingParams has; its server drops others without a word."""
    parameters = getattr(sys.modules.get("vllm.sampling_params"), "SamplingParams", None)
    return list(getattr(parameters, "__struct_fields__", ()))


def _version(value: Any) -> int:
    """A weight version from a header or a body."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _BadRequestError(f"expected a weight version (a whole number), got {value!r}")
    return value


async def _json_body(receive: Receive) -> dict[str, Any]:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _BadRequestError("the client went away")
        body += message.get("body", b"")
        if len(body) > _LARGEST_BODY:
            raise _BadRequestError(f"the body is larger than {_LARGEST_BODY} bytes", 413)
        if not message.get("more_body"):
            break
    try:
        decoded = json.loads(body or b"{}")
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise _BadRequestError("expected a JSON object")
    return decoded


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
