"""Datasets that seven netCDF-C releases wrote, against what netCDF-C read back from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec import ZipStore
from nczarr_xarray import open_hierarchy
from tests.support.oracle import differences

DATA = Path(__file__).parents[1] / "data" / "vectors"
CASES = sorted(path.name.removesuffix(".json") for path in DATA.glob("*.json"))

#: What netCDF-C of the reader's release calls an unnamed dimension.
PREFIXES = {"4.8.0": ".zdim", "4.8.1": ".zdim_", "4.9.0": "_zdim_", "4.9.2": "_zdim_"}

#: The library crashed while it wrote these: groups list arrays that are not there.
ABORTED = {"quantize-nczarr+file-4.9.0"}

#: Where we differ on purpose: (heading in docs/differences.md, dataset, line).
DELIBERATE = [
    ("Text that looks like JSON", r"json-nczarr", r"@j_(num|num_f|neg|true|nan): value"),
    ("Big-endian variables before 4.9.3", r"-4\.(8\.|9\.0|9\.2)", r"/be_\w+: (endian|data)"),
    ("Char variables of pure Zarr", r"-(zarr|nczarr\+noxarray)\+", r": type: char / string"),
    ("Scalars of pure Zarr", r"-zarr\+", r"/(s_\w+|sc): (dims: \[\]|shape: \[\]|chunks: \(\))"),
    ("Scalars of pure Zarr", r"-n?c?zarr\+", r"^/: dimensions: .*(_scalar_|zdim_1|zdim1)"),
    ("No fill in 4.8", r"fills-nczarr\+file-4\.8", r"/nofill_\w+: no_fill"),
    (
        "Types of untyped attributes",
        r"-zarr\+.*-4\.(8|9\.0)",
        r"@.*: type: \w+ / (u?byte|u?short)$",
    ),
    ("Types of untyped attributes", r"fills-zarr\+file-4.9.0", r"@_FillValue: type"),
]


def expected(case: str) -> tuple[str, dict[str, Any]] | None:
    """Release and read-back of the reader that is right for a dataset, if any read it.

    NCZarr is read best by the release that wrote it, pure Zarr by the newest.
    """
    document = json.loads((DATA / f"{case}.json").read_text())
    found = {
        reader.split()[0]: result["root"]
        for reader, result in document["readers"].items()
        if "root" in result
    }
    pure = "-zarr+" in case or "noxarray" in case
    order = ["4.10.1", "4.9.2", document["writer"]] if pure else [document["writer"]]
    return next(((release, found[release]) for release in order if release in found), None)


def open_case(case: str, **options: Any) -> Any:
    path = DATA / f"{case}.dataset.zip"
    return open_hierarchy(path if path.exists() else DATA / f"{case}.zip", **options)


@pytest.mark.parametrize("case", CASES)
def test_equals_oracle(case: str) -> None:
    oracle = expected(case)
    release, root = oracle or ("4.10.1", None)
    with open_case(case, anonymous_prefix=PREFIXES.get(release, "_Anonymous_Dim_")) as opened:
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
    surprising = [
        line
        for line in found
        if not any(re.search(name, case) and re.search(what, line) for _, name, what in DELIBERATE)
    ]
    assert surprising == []


def test_every_deliberate_difference_is_needed_and_documented() -> None:
    lines = []
    for case in CASES:
        if oracle := expected(case):
            prefix = PREFIXES.get(oracle[0], "_Anonymous_Dim_")
            with open_case(case, anonymous_prefix=prefix) as opened:
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
