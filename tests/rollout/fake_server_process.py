"""`python -m tests.rollout.fake_server_process PORT`: a stand-in for vLLM's server as a process of its own, behind the
real guard, which reads its settings from the environment as in vLLM.

`/v1/completions` answers with the port, the prompt and what headers came; `seconds` of the request is how long it takes
and `stream` sends the answer in two events with that time between them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvicorn

from ascent.rollout.in_vllm.guard import Guard, Receive, Scope, Send

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """What vLLM would answer, as far as it matters."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request: dict[str, Any] = json.loads(body or b"{}")
    headers = sorted(name.decode() for name, _ in scope["headers"])
    told = {"port": PORT, "path": scope["path"], "prompt": request.get("prompt"), "headers": headers}
    streams = bool(request.get("stream"))
    kind = b"text/event-stream" if streams else b"application/json"
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
    if streams:
        await send(head)
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
    await asyncio.sleep(request.get("seconds", 0.0))
    if streams:
        return await send({"type": "http.response.body", "body": f"data: {PORT}\n\n".encode()})
    await send(head)
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})


if __name__ == "__main__":
    uvicorn.run(
        Guard(app), host="127.0.0.1", port=PORT, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
    )
