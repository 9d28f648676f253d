from __future__ import annotations

import pytest

from ascent.environment import versions


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("8.1RC1", "8.1.RC1"),
        ("8.3.rc1", "8.3.RC1"),
        ("0.11.0.rc3", "0.11.0rc3"),
        ("2.10.0+cpu", "2.10"),
        ("v0.18.0", "0.18.0"),
        ("2.9.0.post1+git4c901a4", "2.9.0.post1"),
        ("8.2.RC", "8.2.RC1"),
        ("9.0", "9.0.0"),
    ],
)
def test_same(one: str, other: str) -> None:
    assert versions.same(one, other)
    assert versions.same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("8.3.RC1", "8.3.RC2"),
        ("8.5.0", "8.5.1"),
        ("2.7.1rc1", "2.7.1"),
        ("0.8.5", "0.8.5.post1"),
        ("2.7.1.dev20250724", "2.7.1"),
        ("8.2.RC", "8.3.RC1"),
        ("8.3.RC1.alpha003", "8.3.RC1"),
        ("main", "0.1"),
    ],
)
def test_not_same(one: str, other: str) -> None:
    assert not versions.same(one, other)


def test_order_of_a_release() -> None:
    ordered = ["2.7.1.dev20250724", "2.7.1rc1", "2.7.1", "2.7.1.post1", "2.8.0"]
    keys = [version.key for text in ordered if (version := versions.parse(text))]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(ordered)


@pytest.mark.parametrize(
    ("version", "span", "answer"),
    [
        ("0.25.1", ">= 0.17.0, <= 0.25.1", True),
        ("0.25.1.post1", ">= 0.17.0, <= 0.25.1", True),
        ("0.26.0", ">= 0.17.0, <= 0.25.1", False),
        ("8.2.RC1", "<= 8.2.RC1", True),
        ("8.3.RC1", "<= 8.2.RC1", False),
        ("0.12.0rc1", ">= 0.12.0", False),
        ("nonsense", ">= 1", None),
    ],
)
def test_inside(version: str, span: str, answer: bool | None) -> None:
    assert versions.inside(version, span) is answer


def test_inside_refuses_a_range_that_is_none() -> None:
    with pytest.raises(ValueError, match="range"):
        versions.inside("1.0", "about 2")


@pytest.mark.parametrize(("version", "answer"), [("3.12.13", True), ("3.10", True), ("3.13.0", False), ("3", None)])
def test_python_counts_minor_versions_only(version: str, answer: bool | None) -> None:
    assert versions.python_inside(version, ">= 3.10, < 3.13") is answer


@pytest.mark.parametrize(
    ("built", "release"),
    [
        ("0.11.1.dev0+gb8b302c.d20260101", "0.11.0"),
        ("0.9.2rc2.dev0+g1", "0.9.2rc1"),
        ("0.8.5.post2.dev0+g1", "0.8.5.post1"),
    ],
)
def test_build_of_a_changed_checkout_is_the_release_before(built: str, release: str) -> None:
    version = versions.parse(built)
    assert version is not None
    assert version.before_dirty() == versions.parse(release)


def test_snapshots_at_a_distance_have_no_release_before() -> None:
    version = versions.parse("0.11.1.dev6+gabc")
    assert version is not None
    assert version.before_dirty() is None
