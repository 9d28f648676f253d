"""`python -m ascent.rollout.service.gateway FOLDER HOST PORT`: one address in front of all replicas of a service.

For people and tools that speak OpenAI's API. A request goes to the replica that has seen the beginning of its prompt,
unless another one is much less busy. What isn't listed in `_ROUTES` does not pass, and no header that a training's
hold or version of weights would be in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from ascent.host import open_files
from ascent.rollout.service import record
from ascent.rollout.service.prefixes import PrefixMemory, blocks_of

_log = logging.getLogger(__name__)
_SAMPLING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
_ROUTES = {
    **dict.fromkeys((*_SAMPLING, "/tokenize", "/detokenize"), "POST"),
    **dict.fromkeys(("/v1/models", "/version"), "GET"),
}
_SENT = ("content-type", "accept")  # headers of a request that go on; of an answer those of `_GIVEN`
_GIVEN = ("content-type", "cache-control", "retry-after")
_LOOK_SECONDS, _STATUS_SECONDS, _CONNECT_SECONDS = 1.0, 4.0, 5.0
_QUEUED = 2  # times what a replica samples at once is what it is asked for
_LARGEST_BODY, _ALL_BODIES = 8 * 2**20, 256 * 2**20  # bytes of a request, and of all that are under way
_BUSIER, _BUSIER_BY = 1.5, 4  # a replica that has so many times the requests of another, and so many more, is spared
_RETRY_AFTER = "1"  # seconds


@dataclass(eq=False, slots=True)
class Backend:
    """One replica: `busy` are the requests of this gateway to it, `version` the one of its weights (-1: the
    checkpoint's); it is asked only while it is `up`."""

    url: str
    busy: int = 0
    up: bool = False
    version: int = -1


class Gateway:
    """Routes requests to the replicas that the record in the service's folder names."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token = folder, token.encode()
        self._backends: dict[str, Backend] = {}
        self._most = 1  # requests to each at once
        self._prefixes = PrefixMemory()
        self._body_bytes = 0
        self._looking, self._looked_at = asyncio.Lock(), 0.0

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.cleanup_ctx.append(self._running)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _running(self, app: web.Application) -> Any:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        # a kept connection may be closed by the server in the moment that it is used
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as self._session:
            await self._look()
            looking = asyncio.create_task(self._keep_looking())
            yield
            looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                async with self._looking:
                    await self._look()
            except OSError as error:  # such as too many open files, which says nothing about the replicas
                _log.warning("can't see how the service is: %s", error)

    async def _look(self) -> None:
        self._looked_at = time.monotonic()
        found = record.read(self._folder)
        if found is None:
            return  # it ends, and this process with it
        self._most = max(1, _QUEUED * int(found.settings["engine"]["max_num_seqs"]))
        urls = [replica.url for replica in found.replicas if replica.state == "ready"]
        self._backends = {url: self._backends.get(url) or Backend(url) for url in urls}
        await asyncio.gather(*(self._look_at(backend) for backend in self._backends.values()))

    async def _look_at(self, backend: Backend) -> None:
        """Ask a replica how it is; whose weights are being changed is asked for nothing meanwhile."""
        timeout = aiohttp.ClientTimeout(total=_STATUS_SECONDS)
        try:
            async with self._session.get(
                f"{backend.url}/ascent/status", headers=self._authorized(), timeout=timeout
            ) as answer:
                weights = (await answer.json())["weights"]
                backend.up = answer.status == 200 and weights["state"] != "updating"
                backend.version = weights["version"] if weights["state"] == "ready" else -1
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            _log.info("%s: %r", backend.url, error)
            backend.up = False

    def _authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token.decode()}", "Accept-Encoding": "identity"}

    def _usable(self, besides: Backend | None) -> list[Backend]:
        """The replicas that may be asked: those with the newest weights, so that a replica that has just been started
        doesn't answer as the checkpoint would."""
        up = [backend for backend in self._backends.values() if backend.up and backend is not besides]
        newest = max((backend.version for backend in up), default=-1)
        return [backend for backend in up if backend.version == newest]

    async def _found(self, besides: Backend | None) -> list[Backend]:
        """The replicas that may be asked, after a look at once: one may have come up since the last."""
        since = time.monotonic()
        async with self._looking:
            if self._looked_at < since:  # others that waited may have looked meanwhile
                await self._look()
        return self._usable(besides)

    def _choose(self, usable: Sequence[Backend], blocks: list[bytes]) -> Backend:
        least = min(usable, key=lambda backend: backend.busy)
        free = {backend.url: backend for backend in usable if backend.busy < self._most}
        known = free.get(self._prefixes.find(blocks, free.keys()) or "", least)
        return least if known.busy > _BUSIER * least.busy + _BUSIER_BY else known

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.json_response({"replicas": len(self._usable(None))})  # of the gateway itself
        if not self._knows(request.headers.get("Authorization", "")):
            return _refused(401, "the service's token is needed")
        if request.path == "/ascent/status":
            return web.json_response({"schema": "ascent.gateway/1", "replicas": self._facts()})
        if _ROUTES.get(request.path) != request.method:
            return _refused(404, f"{request.method} {request.path[:200]} does not pass the gateway")
        body = b""
        try:
            body = await self._read(request)
            return await self._pass_on(request, body)
        except _RefusedError as refused:
            return _refused(refused.status, str(refused))
        finally:
            self._body_bytes -= len(body)

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("utf-8", "surrogatepass")
        return scheme.lower() == "bearer" and secrets.compare_digest(given, self._token)

    def _facts(self) -> list[dict[str, Any]]:
        backends = self._backends.values()
        return [{"url": each.url, "up": each.up, "busy": each.busy, "version": each.version} for each in backends]

    async def _read(self, request: web.Request) -> bytes:
        """The body, counted with all others that are under way."""
        content = bytearray()
        try:
            async for chunk in request.content.iter_any():
                content += chunk
                self._body_bytes += len(chunk)
                if len(content) > _LARGEST_BODY:
                    raise _RefusedError(413, f"the request is larger than {_LARGEST_BODY} bytes")
                if self._body_bytes > _ALL_BODIES:
                    raise _RefusedError(429, "the requests under way fill the gateway's memory; try again later")
        except BaseException:
            self._body_bytes -= len(content)
            raise
        return bytes(content)

    async def _pass_on(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """To one replica, and once to another one where the first one gave no answer."""
        blocks = _blocks(request.path, body)
        failed: Backend | None = None
        for _ in range(2):
            usable = self._usable(failed) or await self._found(failed)
            if not usable:
                raise _RefusedError(503, "no replica can answer now: they start, are given weights, or are gone")
            backend = self._choose(usable, blocks)
            if backend.busy >= self._most:
                raise _RefusedError(429, f"every replica has {self._most} requests; try again later")
            backend.busy += 1
            try:
                answer = await self._ask(backend, request, body)
                if answer is not None:
                    self._prefixes.note(blocks, backend.url)
                    return await self._give(request, answer)
            finally:
                backend.busy -= 1
            backend.up, failed = False, backend
        raise _RefusedError(502, "two replicas gave no answer")

    async def _ask(self, backend: Backend, request: web.Request, body: bytes) -> aiohttp.ClientResponse | None:
        """The beginning of a replica's answer; None when the connection broke before it."""
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        url = backend.url + request.path  # one of `_ROUTES`, so nothing of the client's is in it
        try:
            return await self._session.request(
                request.method, url, data=body or None, headers={**headers, **self._authorized()}, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.warning("%s gave no answer: %r", backend.url, error)
            return None

    async def _give(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass an answer on as it comes. An answer that breaks off breaks off for the client too."""
        async with answer:
            headers = {name: answer.headers[name] for name in _GIVEN if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientPayloadError as error:
                _log.warning("an answer broke off: %r", error)
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write_eof()
            return response


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _refused(status: int, message: str) -> web.Response:
    """An error as OpenAI's clients read it."""
    headers = {"Retry-After": _RETRY_AFTER} if status in (429, 503) else {}
    return web.json_response({"error": {"message": message, "code": status}}, status=status, headers=headers)


def _blocks(path: str, body: bytes) -> list[bytes]:
    """See `blocks_of`; none for what isn't sampling, or isn't JSON, which the replica will say."""
    if path not in _SAMPLING:
        return []
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return []
    return blocks_of(request) if isinstance(request, dict) else []


def main() -> None:
    """Serve until told to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    open_files.raise_limit()
    folder, host, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    token = (folder / record.TOKEN).read_text(encoding="ascii").strip()
    # a client that goes away ends its request, so that the replica samples no further
    web.run_app(
        Gateway(folder, token).app(),
        host=host,
        port=port,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        print=None,
    )


if __name__ == "__main__":
    main()
