"""Who may ask for a page, what a page may do, and what hostile completions can't."""

from __future__ import annotations

import html.parser
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")
from starlette.testclient import TestClient
from tests.report.synthetic_run import Shape, make_run

from ascent.report.page.app import build_app
from ascent.report.page.export import MOST_BYTES, export
from ascent.report.page.run_library import NoSuchRunError, RunLibrary, library
from ascent.report.page.security import POLICY
from ascent.report.page.visible_text import cut, first_line, visible

TOKEN = "a-token-of-the-tests"
HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror="alert(1)"><a href="javascript:alert(1)">x</a>',
    "data": "</script><script>alert(1)</script><!--",
    "bidi": "if access != '\u202e \u2066// admin\u2069 \u2066':\n    pass",
    "invisible": "a\u200bb\u2060c\ufeffd\u00ade\u3164f",
    "terminal": "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b2J",
    "template": "{{ 7 * 7 }}{% include 'base.html' %}",
    "style": "</style><style>body{display:none}</style>",
}
LONG = "x = 'AAAA'\n" * 1_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs") / "hostile"
    extra: list[dict[str, Any]] = [
        {
            "sample_id": f"hostile/{name}",
            "group_id": f"group of {text[:20]}",
            "task_id": f"task {text[:30]}",
            "index": place,
            "prompt": text,
            "completion": text,
            "program": text,
            "error": text,
            "markers": [text.replace(" ", "")[:20]],
            "outcomes": ["passed", text[:40]],
            "dropped_why": text,
            "kept": False,
            "parts": [(text[:20], 1.0)],
        }
        for place, (name, text) in enumerate({**HOSTILE, "long": LONG}.items())
    ]
    make_run(made, Shape(steps=4, prompts=2, completions=4, hollow_from=2), extra=extra)
    line = json.loads((made / "metrics.jsonl").read_text().splitlines()[-1])
    alarm = {
        "name": HOSTILE["script"],
        "level": "critical",
        "step": 3,
        "what": HOSTILE["attribute"],
        "mend": list(HOSTILE.values()),
    }
    (made / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    (made / "metrics.jsonl").write_text(json.dumps({**line, HOSTILE["script"]: 1.0}) + "\n")
    (made / "config.yaml").write_text(json.dumps({"model": {"path": HOSTILE["script"]}}))
    return made


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[TestClient]:
    runs = library(run)
    with TestClient(build_app(runs, TOKEN), base_url="http://127.0.0.1:8000", follow_redirects=False) as made:
        runs.open("hostile").rollouts.index.refresh()
        yield made
    runs.close()


def entered(client: TestClient, path: str, **more: Any) -> Any:
    return client.get(path, headers={"cookie": f"ascent_report={TOKEN}"}, **more)


class Found(html.parser.HTMLParser):
    """Tags and attributes of a page, and the text between them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Found:
    found = Found()
    found.feed(page)
    return found


def assert_harmless(page: str, scripts: int) -> Found:
    """Nothing of the hostile texts became markup, and no control or invisible character is left."""
    found = parsed(page)
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert not any((value or "").strip().lower().startswith("javascript:") for value in attributes.values())
        assert tag not in {"img", "iframe", "object", "embed", "base", "svg"}, (tag, attributes)
    plain = [
        attributes for tag, attributes in found.tags if tag == "script" and "json" not in (attributes.get("type") or "")
    ]
    assert len(plain) == scripts, plain
    assert not [letter for letter in page if letter != "\n" and not letter.isprintable()]
    assert "49" not in found.text or "{{ 7 * 7 }}" not in page or "7 * 7" in found.text
    return found


PAGES = [
    "/",
    "/runs/hostile/",
    "/runs/hostile/rollouts",
    "/runs/hostile/rollouts?q=" + quote(HOSTILE["attribute"]),
    "/runs/hostile/tasks",
    "/runs/hostile/performance",
    "/runs/hostile/evaluation",
    "/runs/hostile/step?number=4",
    *(f"/runs/hostile/completion?id=hostile/{name}" for name in HOSTILE),
    *(f"/runs/hostile/task?id={quote('task ' + text[:30])}" for text in HOSTILE.values()),
    *(f"/runs/hostile/group?id={quote('group of ' + text[:20])}" for text in HOSTILE.values()),
    "/runs/hostile/completion?id=hostile/long",
    "/runs/hostile/completion?id=" + quote(HOSTILE["attribute"]),
    "/runs/" + quote(HOSTILE["attribute"], safe="") + "/",
    "/" + quote(HOSTILE["script"], safe=""),
    "/compare?run=hostile&run=" + quote(HOSTILE["script"]),
    "/runs/hostile/tasks?kind=" + quote(HOSTILE["attribute"]) + "&sort=" + quote(HOSTILE["script"]),
    "/runs/hostile/step?number=" + quote(HOSTILE["script"]),
]


@pytest.mark.parametrize("path", PAGES)
def test_hostile_texts_do_nothing_in_a_page(client: TestClient, path: str) -> None:
    answer = entered(client, path)
    assert answer.status_code in {200, 404}
    found = parsed(answer.text)
    own = [attributes for tag, attributes in found.tags if tag == "script" and "src" in attributes]
    assert all(attributes["src"] in {"/static/page.js", "/plotly.js"} for attributes in own)
    assert_harmless(answer.text, len(own))
    assert len(answer.text) < 2_000_000, "a long text is cut"


def test_hostile_texts_are_shown_as_they_are(client: TestClient) -> None:
    found = parsed(entered(client, "/runs/hostile/completion?id=hostile/script").text)
    assert HOSTILE["script"] in found.text
    bidi = parsed(entered(client, "/runs/hostile/completion?id=hostile/bidi").text).text
    assert "⟨U+202E⟩" in bidi
    terminal = parsed(entered(client, "/runs/hostile/completion?id=hostile/terminal").text).text
    assert "⟨U+001B⟩[31mred" in terminal
    template = parsed(entered(client, "/runs/hostile/completion?id=hostile/template").text).text
    assert HOSTILE["template"] in template


def test_a_long_text_is_cut_and_can_be_had_whole(client: TestClient) -> None:
    page = entered(client, "/runs/hostile/completion?id=hostile/long").text
    assert f"{len(LONG) - 100_000} characters left out" in parsed(page).text
    whole = entered(client, "/runs/hostile/text?id=hostile/long&name=program")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text == LONG
    steering = entered(client, "/runs/hostile/text?id=hostile/terminal&name=completion")
    assert "\x1b" not in steering.text
    assert entered(client, "/runs/hostile/text?id=hostile/long&name=logps").status_code == 404


def test_every_answer_has_the_policy(client: TestClient) -> None:
    answers = [
        entered(client, "/"),
        entered(client, "/static/page.js"),
        entered(client, "/plotly.js"),
        entered(client, "/nothing"),
        entered(client, "/runs/hostile/state"),
        entered(client, "/runs/hostile/text?id=hostile/script&name=program"),
        client.get("/"),
        client.post("/"),
        client.get("/", headers={"host": "evil.example"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 200, 200, 403, 405, 400]
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
    for part in ("default-src 'none'", "script-src 'self';", "frame-ancestors 'none'"):
        assert part in POLICY


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    for path in ("/", "/runs/hostile/", "/static/page.js"):
        answer = client.request(method, path, headers={"cookie": f"ascent_report={TOKEN}"})
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.9", "", "localhost.", "evil@127.0.0.1"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"cookie": f"ascent_report={TOKEN}", "host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_this_machine_is_let_in(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"cookie": f"ascent_report={TOKEN}", "host": host})
    assert answer.status_code == 200


def test_the_token_is_needed_everywhere(client: TestClient) -> None:
    for path in (
        "/",
        "/runs/hostile/",
        "/static/page.css",
        "/plotly.js",
        "/runs/hostile/text?id=hostile/script&name=program",
    ):
        assert client.get(path).status_code == 403
        for wrong in ("", "wrong", TOKEN[:-1], TOKEN + "x", "é"):
            assert client.get(path, params={"token": wrong}).status_code == 403
            assert client.get(path, headers={"cookie": f"ascent_report={quote(wrong)}"}).status_code == 403
        other = client.get(path, headers={"cookie": f"another={TOKEN}"})
        assert other.status_code == 403
        assert "hostile" not in other.text


def test_the_token_leaves_the_address(client: TestClient) -> None:
    answer = client.get("/runs/hostile/rollouts", params={"q": "a b&c", "token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/hostile/rollouts?q=a+b%26c"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    elsewhere = client.get("//evil.example/", params={"token": TOKEN})
    assert elsewhere.status_code != 303 or not elsewhere.headers["location"].startswith("//")


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "../hostile", "hostile/../..", "/etc", "hostile%00", ""])
def test_only_names_that_the_folder_lists_are_opened(client: TestClient, run: Path, name: str) -> None:
    with pytest.raises(NoSuchRunError):
        RunLibrary(run.parent).open(name)
    if name in {"", ".", ".."}:
        return  # no client sends these
    assert entered(client, f"/runs/{quote(name, safe='')}/").status_code == 404
    assert entered(client, f"/static/{quote(name, safe='')}/page.py").status_code == 404
    assert entered(client, f"/static/{name}/app.py").status_code == 404


def test_the_exported_file_is_harmless_and_small(run: Path, tmp_path: Path) -> None:
    written = export(run, tmp_path / "report.html")
    page = written.path.read_text(encoding="utf-8")
    assert written.size == written.path.stat().st_size <= MOST_BYTES
    own = 3  # the packed chart library (data), the page's script, the one that unpacks
    found = assert_harmless(page, own)
    policies = [
        a["content"] or ""
        for tag, a in found.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert "unsafe-inline" not in policies[0].partition("script-src")[2].partition(";")[0]
    assert not [a for tag, a in found.tags if (a.get("src") or "").startswith(("http", "//", "/"))]
    assert HOSTILE["script"] in found.text


def test_controls_and_invisible_characters_are_written_out() -> None:
    ascii_controls = "\x00\x07\x1b\x7f\x85\x9b"
    unseen = "\u00ad\u061c\u200b\u200e\u202a\u202e\u2028\u2066\u2069\ufeff\ufff9\u3164\U000e0041\ue000\ud800"
    for letter in ascii_controls + unseen:
        assert visible(f"a{letter}b") == f"a⟨U+{ord(letter):04X}⟩b"
    kept = "plain\ttext\nwith 中文, ümlaut, emoji 🎉, ∑ and ‘quotes’"
    assert visible(kept) == kept
    assert cut("x\u202ey" * 10, 4) == ("x⟨U+202E⟩yx", 26)
    assert first_line("\n\n  \u202eabc\nnext") == "⟨U+202E⟩abc"
    assert first_line("y" * 500).endswith("…")
