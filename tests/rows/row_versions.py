"""Run in the process of a row: are its packages the ones that are imported?"""

from __future__ import annotations

import importlib
import os


def test_versions_are_those_of_the_row() -> None:
    for word in os.environ["ASCENT_ROW"].split():
        name, _, version = word.partition("=")
        assert importlib.import_module(name).__version__.partition("+")[0] == version
