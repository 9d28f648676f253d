"""HTTP from a background thread: one event loop and one session, for hundreds of requests at once.

Each request that is under way has a connection of its own; what is done with is kept for the next. How many are under
way at once is for the caller to limit: see `room`.

Proxies of the environment are not used: servers are on this machine or on the same network.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from ascent.host import open_files
from ascent.rollout.weights.control import ServerCallError

T = TypeVar("T")
CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 3.0  # vLLM closes idle connections after 5, and a call must not meet that
# codes of a ServerCallError: refused, reset or broken, rather than slow; and what is no fault of the server
NO_CONNECTION, OWN_SHORTAGE = "connection", "own shortage"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: its status and its body, decoded when it is JSON unless it was asked for as it is."""

    status: int
    content: Any

    @property
    def code(self) -> str | None:
        """The guard's reason for a refusal."""
        return self.content.get("code") if isinstance(self.content, dict) else None

    def message(self) -> str:
        """What the server says about a failure, in one line."""
        content = self.content
        if isinstance(content, dict):
            error = content.get("error") or content.get("detail") or content.get("message") or content
            content = error.get("message", error) if isinstance(error, dict) else error
        return " ".join(str(content).split())[:2000] or f"HTTP status {self.status}"


class HttpThread:
    """Coroutines run in its loop; `run` waits for one from any other thread."""

    def __init__(self) -> None:
        self._room = open_files.spare()
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="ascent-http", daemon=True)
        self._thread.start()
        self.run(self._open())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._loop.is_closed()

    @property
    def room(self) -> int:
        """How many requests may be under way at once, by the limit of open files when the thread was started."""
        return self._room

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for its result. Timeouts are the coroutine's own affair."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def soon(self, call: Any, *arguments: Any) -> None:
        """Call a function in the thread, without waiting."""
        self._loop.call_soon_threadsafe(call, *arguments)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float | None,
        as_bytes: bool = False,
    ) -> Answer:
        """One request with a JSON body, sent once; `timeout` in seconds. With `as_bytes` the content of an answer of
        status 200 is left as it came. Raises ServerCallError without a status when no whole answer comes."""
        assert self._session is not None
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, url, headers=headers, data=body, timeout=limits, allow_redirects=False
            ) as answer:
                raw = await answer.read()
                if as_bytes and answer.status == 200:
                    return Answer(answer.status, raw)
                is_json = answer.content_type == "application/json" and raw
                content = await answer.json() if is_json else raw.decode("utf-8", "replace")
                return Answer(answer.status, content)
        except TimeoutError as error:
            raise ServerCallError(f"{url}: no answer within {timeout or CONNECT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if shortage := open_files.own_shortage(error):
                raise ServerCallError(f"{url}: {shortage}", code=OWN_SHORTAGE) from error
            raise ServerCallError(f"{url}: {type(error).__name__}: {error}", code=NO_CONNECTION) from error

    def close(self) -> None:
        """End the session and the thread. Safe to call twice."""
        if self.closed:
            return
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector)

    async def _close(self) -> None:
        assert self._session is not None
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()
