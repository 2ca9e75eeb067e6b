"""Datasets that seven netCDF-C releases wrote, against what netCDF-C read back from them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from nczarr_fsspec import ZipStore
from tests.support.corpora.vectors import (
    ABORTED,
    CASES,
    DATA,
    DELIBERATE,
    expected,
    open_case,
    surprising,
)
from tests.support.oracles.oracle import differences

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ci"))

import compatibility
import page_tables


@pytest.mark.parametrize("case", CASES)
def test_equals_oracle(case: str) -> None:
    oracle = expected(case)
    release, root = oracle or ("4.10.1", None)
    with open_case(case, release) as opened:
        problems = [str(problem) for problem in opened.hierarchy.problems]
        if case == "quantize-zarr+file-4.9.2":  # chunks were written, no metadata
            assert len(problems) == 1
            assert "'/bitgroom', '/granularbr' are left out, without .zgroup" in problems.pop()
        assert not problems
        if root is None:
            variables = [v for g in opened.hierarchy.root.walk() for v in g.variables.values()]
            if case in ABORTED:
                assert all("is missing" in str(v.error) for v in variables)
                return
            # no release reads it: every variable must be readable all the same
            assert variables
            assert all(v.error is None and opened.read(v).shape == v.shape for v in variables)
            return
        found = list(differences(opened, root))
    assert surprising(case, found) == []


def test_every_deliberate_difference_is_needed_and_documented() -> None:
    lines = []
    for case in CASES:
        if oracle := expected(case):
            with open_case(case, oracle[0]) as opened:
                lines += [(case, line) for line in differences(opened, oracle[1])]
    page = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    for heading, name, what in DELIBERATE:
        assert f"## {heading}\n" in page
        assert any(re.search(name, case) and re.search(what, line) for case, line in lines), heading


def test_zip_of_a_tree_and_prefixed_zip_are_both_here() -> None:
    layouts = set()
    for path in DATA.glob("*.zip"):
        store = ZipStore(path)
        layouts.add(path.name.endswith(".dataset.zip"))
        assert store.list("")
        store.close()
    assert layouts == {True, False}


@pytest.mark.slow
def test_the_tables_of_compatibility_are_as_they_would_be_made() -> None:
    page = compatibility.PAGE.read_text(encoding="utf-8")
    assert page_tables.replaced(page, compatibility.tables()) == page
