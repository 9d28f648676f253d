"""Version numbers as they are written in the field: PEP 440, CANN (8.3.RC2), nightlies, typing slips (0.11.0.rc3)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHAPE = re.compile(
    r"""v?(?P<release>\d{1,9}(?:\.\d{1,9})*)
    (?:[._-]?(?P<pre>rc|c|alpha|beta|a|b)[._-]?(?P<pre_number>\d{0,9})(?:\.(?P<pre_part>\d{1,9}))?
       (?:[._-]?(?:alpha|beta)[._-]?(?P<stage>\d{0,9}))?)?
    (?:[._-]?post[._-]?(?P<post>\d{0,9}))?
    (?:[._-]?dev[._-]?(?P<dev>\d{0,14}))?
    (?:\+(?P<local>[\w.]+))?""",
    re.VERBOSE | re.IGNORECASE,
)
_SPELLING = {"c": "rc", "a": "alpha", "b": "beta"}
_PRE_ORDER = {"alpha": 0, "beta": 1, "rc": 2}
_UNSTATED = -1
_SPEC = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")
SortKey = tuple[tuple[int, ...], tuple[int, int, int, int], int, int]


@dataclass(frozen=True)
class Version:
    """A parsed version. `==` compares without local part and trailing zeros; `key` sorts."""

    text: str
    release: tuple[int, ...]
    pre: tuple[str, int, int, int] | None = None
    post: int | None = None
    dev: int | None = None

    @property
    def key(self) -> SortKey:
        """Sort key: development < pre-release < release < post-release, as in PEP 440."""
        if self.pre is not None:
            kind, number, part, stage = self.pre
            pre = (_PRE_ORDER[kind], number, part, stage if stage >= 0 else 1 << 30)
        elif self.dev is not None and self.post is None:
            pre = (-1, 0, 0, 0)
        else:
            pre = (9, 0, 0, 0)
        post = _UNSTATED if self.post is None else self.post
        return (self.release, pre, post, 1 << 60 if self.dev is None else self.dev)

    @property
    def base(self) -> str:
        """Release part alone, at least two numbers: `2.10` for 2.10.0.post4."""
        numbers = self.release if len(self.release) > 1 else (*self.release, 0)
        return ".".join(map(str, numbers))

    def without_dev(self) -> Version:
        """0.20.2rc1 for 0.20.2rc1.dev12: the release that a development snapshot leads to."""
        return Version(self.text, self.release, self.pre, self.post, None)

    def without_post(self) -> Version:
        """0.23.0 for 0.23.0.post1."""
        return Version(self.text, self.release, self.pre, None, self.dev)

    def before_dirty(self) -> Version | None:
        """The release that a `.dev0` build was made from: setuptools-scm calls a changed 0.11.0 0.11.1.dev0."""
        if self.dev != 0 or "dev0+" not in self.text:
            return None
        if self.post is not None:
            return Version(self.text, self.release, self.pre, self.post - 1 if self.post > 1 else None)
        if self.pre is not None and self.pre[1] > 0:
            kind, number, part, stage = self.pre
            return Version(self.text, self.release, (kind, number - 1, part, stage))
        *head, last = (*self.release, 0, 0)[: max(3, len(self.release))]
        if last == 0:
            return None
        release = [*head, last - 1]
        while len(release) > 1 and release[-1] == 0:
            release.pop()
        return Version(self.text, tuple(release))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def parse(text: str) -> Version | None:
    """Read a version; None when the text isn't one."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        return None
    release = [int(number) for number in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = None
    if match["pre"]:
        kind = match["pre"].lower()
        number = int(match["pre_number"]) if match["pre_number"] else _UNSTATED
        stage = _UNSTATED if match["stage"] is None else int(match["stage"] or 0)
        pre = (_SPELLING.get(kind, kind), number, int(match["pre_part"] or 0), stage)
    post = None if match["post"] is None else int(match["post"] or 0)
    dev = None if match["dev"] is None else int(match["dev"] or 0)
    return Version(text.strip(), tuple(release), pre, post, dev)


def same(have: str, want: str) -> bool:
    """Whether both texts name one version. `8.2.RC`, whose number was left out, equals any release candidate."""
    one, other = parse(have), parse(want)
    if one is None or other is None:
        return have.strip().lower() == want.strip().lower()
    if one.pre and other.pre and _UNSTATED in (one.pre[1], other.pre[1]):
        return one.release == other.release and one.pre[0] == other.pre[0]
    return one == other


def inside(version: str, spec: str) -> bool | None:
    """Whether a version lies in a range like `>= 3.10, < 3.13`; None when the version can't be read.

    A bare series counts as its first release, and `<= 0.25.1` holds for 0.25.1.post1 too.
    """
    have = parse(version)
    if have is None:
        return None
    for clause in spec.split(","):
        match = _SPEC.fullmatch(clause)
        if match is None:
            raise ValueError(f"not a version range: {spec!r}")
        want = parse(match[2])
        if want is None:
            raise ValueError(f"not a version in a range: {match[2]!r}")
        # A release candidate of the lower bound isn't the release, but for ranges it is inside.
        left, right = have.key, want.key
        if match[1] == "<=" and have.without_post().without_dev() == want:
            continue
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            ">": left > right,
            "<": left < right,
        }[match[1]]
        if not holds:
            return False
    return True


def older(version: str, bound: str) -> bool:
    """Whether `version` is readable and older than `bound`."""
    return inside(version, f"< {bound}") is True


def at_least(version: str, bound: str) -> bool:
    """Whether `version` is readable and not older than `bound`."""
    return inside(version, f">= {bound}") is True


def python_inside(version: str, spec: str) -> bool | None:
    """`inside` for interpreters: only major and minor count, so 3.12.13 lies in `< 3.13` and `3.11` in `>= 3.11`."""
    have = parse(version)
    if have is None or len(have.release) < 2:
        return None
    return inside(f"{have.release[0]}.{have.release[1]}", spec)
