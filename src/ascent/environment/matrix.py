"""Releases that belong together: which row a machine is on, what differs, and the shortest way onto a row."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from ascent.environment.inventory import Environment
from ascent.environment.versions import Version, at_least, inside, older, parse, python_inside, same

Kind = Literal["fits", "differs", "no row", "newer", "not stated"]
COMPONENTS = ("python", "cann", "torch", "torch-npu", "triton-ascend", "vllm")


@dataclass(frozen=True)
class Row:
    """One line of the release matrix. An empty string: the release doesn't use the component."""

    vllm_ascend: str
    vllm: tuple[str, ...]
    python: str
    cann: str
    torch: str
    torch_npu: str
    triton_ascend: str
    source: str = ""

    def wants(self, component: str) -> str:
        """What the row asks of a component, as text."""
        if component == "vllm":
            return " or ".join(self.vllm)
        return str(getattr(self, component.replace("-", "_")))


@dataclass(frozen=True)
class Difference:
    """A component that is there in another version than the row's."""

    component: str
    have: str
    want: str

    def __str__(self) -> str:
        return f"{self.component} {self.have} != {self.want}"


@dataclass(frozen=True)
class Judgement:
    """How a machine stands to the matrix.

    ``fits``: on ``row`` as far as stated. ``differs``: ``row`` is the nearest and ``differences`` keep it
    from fitting.
    ``no row``: this vLLM-Ascend has none (``row`` is the nearest). ``newer``: later than the table, so
    unknown.
    ``not stated``: no vLLM-Ascend version is known (``row`` is one that the rest would fit, if any).
    """

    kind: Kind
    row: Row | None = None
    differences: tuple[Difference, ...] = ()
    near: tuple[Row, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Matrix:
    """The table with its origin."""

    rows: tuple[Row, ...]
    current: str
    trl: tuple[tuple[str, str], ...]
    source: str
    read: str

    def row(self, vllm_ascend: str) -> Row | None:
        """The row of exactly this release."""
        return next((row for row in self.rows if same(row.vllm_ascend, vllm_ascend)), None)


@functools.cache
def load() -> Matrix:
    """The matrix that ships with the package (`data/releases.toml`)."""
    text = resources.files("ascent.environment").joinpath("data/releases.toml").read_text("utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    rows = tuple(Row(**{**row, "vllm": tuple(row["vllm"])}) for row in data["row"])
    about: Mapping[str, Any] = data["about"]
    return Matrix(
        rows,
        about["current"],
        tuple((each["trl"], each["vllm"]) for each in data["trl"]),
        about["source"],
        str(about["read"]),
    )


def judge(environment: Environment, matrix: Matrix | None = None) -> Judgement:
    """Place a machine in the matrix by its vLLM-Ascend, and without one by vLLM, torch and torch_npu."""
    matrix = matrix or load()
    stated = environment.version("vllm-ascend")
    version = parse(stated) if stated else None
    if version is None:
        return _judge_without(environment, matrix)
    row, remark = _find(version, matrix)
    if row is None:
        near = _closest(version, matrix)
        newest = max((each for each in map(parse, (row.vllm_ascend for row in matrix.rows)) if each), key=_key)
        if version.key > newest.key:
            return Judgement("newer", None, (), near, f"vllm-ascend {stated} is newer than the table")
        return Judgement("no row", near[0], compare(environment, near[0]), near, f"no row for vllm-ascend {stated}")
    differences = compare(environment, row)
    return Judgement("differs" if differences else "fits", row, differences, (row,), remark)


def _key(version: Version) -> Any:
    return version.key


def _find(version: Version, matrix: Matrix) -> tuple[Row | None, str]:
    """The row of a release, of the release that a snapshot leads to, or that a post-release mends."""
    if row := matrix.row(version.text):
        return row, ""
    for shorter, remark in (
        (version.without_dev(), "a development snapshot on the way to this row's release"),
        (version.before_dirty(), "built from a changed checkout of this row's release"),
        (version.without_post().without_dev(), "a post-release of this row's release"),
    ):
        for row in matrix.rows:
            if shorter is not None and shorter != version and parse(row.vllm_ascend) == shorter:
                return row, remark
    return None, ""


def _closest(version: Version, matrix: Matrix) -> tuple[Row, ...]:
    """Rows by distance of their number; of two equally near the newer one first."""
    padded = (*version.release, 0, 0)[:3]

    def distance(row: Row) -> tuple[int, int]:
        other = parse(row.vllm_ascend)
        release = (*other.release, 0, 0)[:3] if other else (0, 0, 0)
        gap = sum(abs(a - b) * scale for a, b, scale in zip(padded, release, (10**6, 10**3, 1), strict=True))
        finished = other is not None and other.pre is None
        return gap, 0 if finished == (version.pre is None) else 1

    return tuple(sorted(matrix.rows, key=distance)[:3])


def _judge_without(environment: Environment, matrix: Matrix) -> Judgement:
    vllm = parse(environment.version("vllm"))
    vllm = (vllm.before_dirty() or vllm) if vllm else None
    if vllm is None or not (environment.version("torch-npu") or environment.accelerator == "npu"):
        return Judgement("not stated", remark="vllm-ascend version not stated")
    base = [row for row in matrix.rows if any(_base(each) == vllm.base for each in row.vllm)]
    ranked = sorted(base, key=lambda row: len(compare(environment, row)))
    if not ranked:
        return Judgement("not stated", remark="vllm-ascend version not stated")
    best = compare(environment, ranked[0])
    if not best:
        return Judgement("not stated", ranked[0], (), tuple(ranked[:3]), "vllm-ascend version not stated")
    return Judgement("differs", ranked[0], best, tuple(ranked), "vllm-ascend isn't there: judged by the rest")


def _base(version: str) -> str:
    parsed = parse(version)
    return parsed.base if parsed else version


def compare(environment: Environment, row: Row) -> tuple[Difference, ...]:
    """What is known of a machine and isn't as the row asks. What isn't known counts as fitting."""
    differences = []
    python = environment.host.python
    if python and environment.host.python_sure and python_inside(python, row.python) is False:
        differences.append(Difference("python", python, row.python))
    if environment.cann_version and not same(environment.cann_version, row.cann):
        differences.append(Difference("CANN", environment.cann_version, row.cann))
    for component in ("torch", "torch-npu", "triton-ascend"):
        have, want = environment.version(component), row.wants(component)
        if have and want and not same(have, want):
            differences.append(Difference(component, have, want))
    vllm = environment.version("vllm")
    if vllm and not any(same(vllm, want) or _dirty_build_of(vllm, want) for want in row.vllm):
        differences.append(Difference("vllm", vllm, row.wants("vllm")))
    return tuple(differences)


def _dirty_build_of(have: str, want: str) -> bool:
    version = parse(have)
    return version is not None and version.before_dirty() == parse(want)


def steps_onto(row: Row, environment: Environment, differences: tuple[Difference, ...]) -> tuple[str, ...]:
    """The smallest set of changes that puts a machine on a row, in the order in which they must be done."""
    changed = {difference.component for difference in differences}
    steps: list[str] = []
    if "python" in changed:
        steps.append(f"make a new environment with Python {row.python} (everything below goes into it)")
    if "CANN" in changed:
        steps.append(f"install CANN {row.cann}: toolkit first, then the kernels for your chip, then NNAL {row.cann}")
        steps.append("source the new toolkit's set_env.sh and nnal/atb/set_env.sh (in the service unit too)")
    wanted = environment.version("vllm-ascend")
    if "vllm" in changed:
        steps.append(f'pip install --no-deps "vllm=={row.vllm[-1]}"')
    pair = [f'"torch=={row.torch}"', f'"torch-npu=={row.torch_npu}"']
    if {"torch", "torch-npu"} & changed:
        steps.append("pip install --no-deps " + " ".join(pair) + _index_hint(row))
    if not same(wanted, row.vllm_ascend) if wanted else True:
        steps.append(f'pip install --no-deps "vllm-ascend=={row.vllm_ascend}"')
    if "triton-ascend" in changed and row.triton_ascend:
        steps.append(f'pip uninstall -y triton; pip install "triton-ascend=={row.triton_ascend}"{_triton_hint(row)}')
    return tuple(steps)


def _index_hint(row: Row) -> str:
    version = parse(row.torch_npu)
    if version and version.dev is not None:
        return "   # a development build: take the wheel from the vendor's image or archive"
    return ""


def _triton_hint(row: Row) -> str:
    if at_least(row.triton_ascend, "3.2.1") or "dev" in row.triton_ascend:
        return "   # not on PyPI: from the vendor's index or image"
    return ""


def row_of_the_rest(environment: Environment, matrix: Matrix | None = None) -> Row | None:
    """The newest row that everything but vLLM-Ascend fits already: then that alone must be changed.

    None where too little is known to say so (vLLM and one of CANN, torch, torch_npu).
    """
    matrix = matrix or load()
    known = (environment.cann_version, environment.version("torch"), environment.version("torch-npu"))
    if not environment.version("vllm") or not any(known):
        return None
    return next((row for row in matrix.rows if not compare(environment, row)), None)


def path_to_current(environment: Environment, matrix: Matrix | None = None) -> tuple[str, ...]:
    """From any older stack to the row that is tested today."""
    matrix = matrix or load()
    row = matrix.row(matrix.current)
    if row is None:
        raise ValueError(f"data/releases.toml: no row for its own `current` release {matrix.current!r}")
    image = (
        f"simplest: the vendor's image quay.io/ascend/vllm-ascend:v{row.vllm_ascend} holds the whole row "
        f"(CANN {row.cann}, torch {row.torch}, torch-npu {row.torch_npu}, vllm {row.vllm[-1]})"
    )
    steps = [image, "by hand: a new environment with Python 3.11 or 3.12 (the row's and TRL's common ground)"]
    if not same(environment.cann_version or "0", row.cann):
        steps.append(f"install a driver that CANN {row.cann} accepts, then CANN {row.cann}: toolkit, kernels, NNAL")
    steps.append(f'pip install --no-deps "torch=={row.torch}" "torch-npu=={row.torch_npu}" "vllm=={row.vllm[-1]}"')
    steps.append(f'pip install --no-deps "vllm-ascend=={row.vllm_ascend}"')
    steps.append(f'pip install "triton-ascend=={row.triton_ascend}"{_triton_hint(row)}')
    return tuple(steps)


def rows_with_cann(cann: str, matrix: Matrix | None = None) -> list[str]:
    """The releases whose row names this CANN, newest first."""
    matrix = matrix or load()
    return [row.vllm_ascend for row in matrix.rows if cann and same(row.cann, cann)]


def trl_range(trl: str, matrix: Matrix | None = None) -> str | None:
    """The vLLM versions that a TRL accepts; None where the table doesn't say."""
    matrix = matrix or load()
    return next((vllm for span, vllm in matrix.trl if inside(trl, span)), None)


def is_old_stack(environment: Environment) -> bool:
    """Whether a machine runs what tutorials of 2023 to early 2025 name: no weight transfer, no V1 engine,
    no TRL pair.
    """
    vllm_ascend, torch_npu = environment.version("vllm-ascend"), environment.version("torch-npu")
    if vllm_ascend:
        return older(vllm_ascend, "0.8.4rc2")
    python_old = bool(environment.host.python) and python_inside(environment.host.python, "< 3.9") is True
    cann_old = bool(environment.cann_version) and older(environment.cann_version, "8.0.0")
    return cann_old or older(torch_npu, "2.5.1") or (python_old and environment.accelerator == "npu")
