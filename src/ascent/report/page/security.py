"""Who may ask, and what a page may do. Completions are hostile, and other users of the machine may reach the port."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Scripts come from this server alone, and nothing is asked of any other. Plotly styles its charts inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """Puts `HEADERS` on every answer, refusals and errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self.app(scope, receive, with_headers)


class ReadOnly:
    """Refuses everything but GET and HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            refusal = PlainTextResponse("this page is read only", 405, {"Allow": "GET, HEAD"})
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class TokenGate:
    """Lets in who has the token: from the printed address first (`?token=`), from a cookie afterwards.

    The address is then cleared of it, so that a link that is passed on, or a picture of the window, doesn't hold it.
    """

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self.app, self.token, self.cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        answer: ASGIApp
        if given is not None:
            answer = self._enter(scope, query) if self._right(given) else _refusal()
        else:
            answer = self.app if self._right(HTTPConnection(scope).cookies.get(self.cookie, "")) else _refusal()
        await answer(scope, receive, send)

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _enter(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another host's address
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return answer


def _refusal() -> Response:
    return PlainTextResponse(
        "This report is private: open the address that `ascent report` printed, with its token.", 403
    )
