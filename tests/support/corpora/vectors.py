"""The datasets in ``tests/data/vectors``: what releases of netCDF-C wrote, and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nczarr_xarray import Opened, open_hierarchy

DATA = Path(__file__).parents[2] / "data" / "vectors"
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


def document(case: str) -> dict[str, Any]:
    """Return who wrote a case, and what each reader returned of it."""
    found: dict[str, Any] = json.loads((DATA / f"{case}.json").read_text())
    return found


def is_pure(case: str) -> bool:
    """Tell whether a case is pure Zarr, without NCZarr's keys."""
    return "-zarr+" in case or "noxarray" in case


def expected(case: str) -> tuple[str, dict[str, Any]] | None:
    """Release and read-back of the reader that is right for a dataset, if any read it.

    NCZarr is read best by the release that wrote it, pure Zarr by the newest.
    """
    known = document(case)
    found = {
        reader.split()[0]: result["root"]
        for reader, result in known["readers"].items()
        if "root" in result
    }
    order = ["4.10.1", "4.9.2", known["writer"]] if is_pure(case) else [known["writer"]]
    return next(((release, found[release]) for release in order if release in found), None)


def open_case(case: str, release: str) -> Opened:
    """Open the dataset of a case with us; unnamed dimensions are called as by a release."""
    path = DATA / f"{case}.dataset.zip"
    return open_hierarchy(
        path if path.exists() else DATA / f"{case}.zip",
        anonymous_dimension_prefix=PREFIXES.get(release, "_Anonymous_Dim_"),
    )


def surprising(case: str, lines: Iterable[str]) -> list[str]:
    """Return those of the differences that are not deliberate."""
    return [
        line
        for line in lines
        if not any(re.search(name, case) and re.search(what, line) for _, name, what in DELIBERATE)
    ]
