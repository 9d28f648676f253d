"""The page as a Starlette application: addresses to what they show. Nothing here writes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ascent.report.page import completion_pages, run_pages, runs_pages
from ascent.report.page.completion_pages import NotThereError
from ascent.report.page.rendering import render
from ascent.report.page.rollout_filter import whole_number
from ascent.report.page.run_library import NoSuchRunError, OpenRun, RunLibrary
from ascent.report.page.security import HEADERS, ReadOnly, SecurityHeaders, TokenGate
from ascent.report.page.texts import LANGUAGES, Texts, texts_in
from ascent.report.page.visible_text import visible

HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")
_LANGUAGE_COOKIE = "ascent_language"
_RunPage: TypeAlias = Callable[[OpenRun, Mapping[str, str], Texts], dict[str, Any]]

# tab -> (template, what it shows); tabs that have a title stand in the run's menu
TABS = {
    "": "Overview",
    "rollouts": "Rollouts",
    "tasks": "Tasks",
    "performance": "Performance",
    "evaluation": "Evaluation",
}
_RUN_PAGES: Mapping[str, tuple[str, _RunPage]] = {
    "": ("overview.html", lambda run, query, say: run_pages.overview(run, say)),
    "performance": ("performance.html", lambda run, query, say: run_pages.performance(run, say)),
    "evaluation": ("evaluation.html", lambda run, query, say: run_pages.evaluation(run)),
    "step": ("step.html", lambda run, query, say: run_pages.step_page(run, whole_number(query.get("number")) or 0)),
    "rollouts": ("rollouts.html", lambda run, query, say: completion_pages.rollouts_page(run, query)),
    "group": ("group.html", lambda run, query, say: completion_pages.group_page(run, query)),
    "completion": ("completion.html", lambda run, query, say: completion_pages.completion_page(run, query)),
    "tasks": ("tasks.html", lambda run, query, say: completion_pages.tasks_page(run, query)),
    "task": ("task.html", lambda run, query, say: completion_pages.task_page(run, query)),
}


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a library; `language` is what a browser gets that has chosen none."""

    library: RunLibrary
    language: str

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        return self._page(request, "runs.html", {"title": "", **runs_pages.runs_page(self.library)})

    def compare(self, request: Request) -> Response:
        """Runs beside each other."""
        names = request.query_params.getlist("run")
        shown = runs_pages.compare_page(self.library, names, self._say(request))
        return self._page(request, "compare.html", {"title": self._say(request)("Compare"), **shown})

    def of_run(self, tab: str) -> Callable[[Request], Response]:
        """A page about one run."""
        template, make = _RUN_PAGES[tab]

        def answer(request: Request) -> Response:
            run = self.library.open(request.path_params["run"])
            run.rollouts.index.freshen()
            shown = make(run, request.query_params, self._say(request))
            return self._page(request, template, {**self._about(run, tab), **shown})

        return answer

    def state(self, request: Request) -> Response:
        """A word that changes when the run has something new, for the page's script."""
        run = self.library.open(request.path_params["run"])
        run.rollouts.index.freshen(0.0)
        return JSONResponse({"stamp": _stamp(run), "status": run.state.status})

    def text(self, request: Request) -> Response:
        """One text of a completion, whole, as plain text with its controls written out."""
        run = self.library.open(request.path_params["run"])
        run.rollouts.index.freshen()
        query = request.query_params
        text = completion_pages.text_of(run, query.get("id", ""), query.get("name", ""))
        return PlainTextResponse(visible(text))

    def not_there(self, request: Request, error: Exception) -> Response:
        """What an address names isn't there (any more)."""
        say = self._say(request)
        what = say("the run {name}", name=str(error)) if isinstance(error, NoSuchRunError) else str(error)
        progress = None
        if isinstance(error, NotThereError):
            with contextlib.suppress(NoSuchRunError):  # gone since
                progress = self.library.open(request.path_params["run"]).rollouts.index.progress
        return self._page(request, "not_there.html", {"title": "", "what": what, "progress": progress}, 404)

    def failed(self, request: Request, error: Exception) -> Response:
        """A fault of the page itself; the terminal has its traceback."""
        what = f"{type(error).__name__}: {error}"[:500]
        answer = self._page(request, "failed.html", {"title": "", "what": what}, 500)
        answer.headers.update(HEADERS)  # it is made outside of the middleware
        return answer

    def _about(self, run: OpenRun, tab: str) -> dict[str, Any]:
        state = run.state
        return {
            "title": state.name,
            "state": state,
            "base": f"/runs/{quote(state.name, safe='')}",
            "tab": tab,
            "tabs": TABS,
            "stamp": _stamp(run),
            "problems": run.problems(),
            "progress": run.rollouts.index.progress,
        }

    def _say(self, request: Request) -> Texts:
        chosen = request.query_params.get("language") or request.cookies.get(_LANGUAGE_COOKIE, "")
        return texts_in(chosen if chosen in LANGUAGES else self.language)

    def _page(self, request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
        query = request.query_params
        rest = query.multi_items()
        address = {
            code: _address(request, [*((n, v) for n, v in rest if n != "language"), ("language", code)])
            for code in LANGUAGES
        }
        language = self._say(request).language
        html = render(template, language, {"single": self.library.single, "in_language": address, **context})
        answer = HTMLResponse(html, status)
        if query.get("language") in LANGUAGES:
            answer.set_cookie(_LANGUAGE_COOKIE, language, httponly=True, samesite="strict")
        return answer


def build_app(library: RunLibrary, token: str, *, language: str = "en", cookie: str = "ascent_report") -> Starlette:
    """The application. Whoever asks must name a host of `HOSTS` and have the token; see `security`."""
    pages = Pages(library, language)
    own = resources.files(__package__).joinpath("static")
    routes = [
        Route("/", pages.runs),
        Route("/compare", pages.compare),
        *(Route(f"/runs/{{run}}/{tab}", pages.of_run(tab)) for tab in _RUN_PAGES),
        Route("/runs/{run}/text", pages.text),
        Route("/runs/{run}/state", pages.state),
        Route("/plotly.js", _plotly),
        Mount("/static", StaticFiles(directory=str(own))),
    ]
    middleware = [
        Middleware(SecurityHeaders),
        Middleware(ReadOnly),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        Middleware(TokenGate, token=token, cookie=cookie),
    ]
    handlers: Mapping[Any, Any] = {
        NoSuchRunError: pages.not_there,
        NotThereError: pages.not_there,
        404: lambda request, error: pages.not_there(request, NoSuchPageError(request.url.path)),
        Exception: pages.failed,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class NoSuchPageError(LookupError):
    """An address that the page doesn't have."""


def plotly_script() -> Any:
    """Plotly's script, where its package keeps it."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js")


def _plotly(request: Request) -> Response:
    return FileResponse(str(plotly_script()), media_type="text/javascript")


def _stamp(run: OpenRun) -> str:
    state = run.state
    told = (
        len(state.steps),
        len(state.evaluations),
        len(state.alarms),
        state.status,
        run.rollouts.index.version,
        run.rollouts.index.progress,
        [(problem.file, problem.what) for problem in run.problems()],
    )
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _address(request: Request, query: list[tuple[str, str]]) -> str:
    return f"{request.url.path}?{'&'.join(f'{quote(name)}={quote(value)}' for name, value in query)}"
