"""Hand-made Zarr v2 with every oddity, against what netCDF-C 4.10.1 made of it."""

from __future__ import annotations

import ast
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nczarr_xarray import FormatError, open_hierarchy
from tests.support.oracles.oracle import differences

DATA = Path(__file__).parents[1] / "data" / "vectors-edge"

#: (dataset, line of difference): each is explained in docs/differences.md.
DELIBERATE = [
    (r"dt_(n|)i4$", r"/v: (data|endian)"),  # Multi-byte types without a byte order
    (r"dt_bS1$", r"/v: type: char / string"),  # Char variables of pure Zarr
    (r"orderF$", r"/v: data"),  # Column-major arrays
    (r"scalar$", r"^/: variables"),  # Empty shapes
    (r"atts$", r"@(mix|ss): type"),  # Untyped attribute arrays
]

#: Datasets that netCDF-C does not open, or crashes on, and what we read.
UNREAD: dict[str, Any] = {
    "dt_nb1": ("v", "|b1"),
    "dt_lf2": ("v", "<f2"),
    "dt_lc16": ("v", "<c16"),
    "dt_lU3": ("v", "<U3"),
    "dt_lM8[ns]": ("v", "<M8[ns]"),
    "dt_nV4": ("v", "|V4"),
    "dt_struct": ("v", "|V4"),
    "dt_lU1": ("v", "<U1"),
    "fv_s0": ("v", "|S4"),
    "fv_str": ("v", "<i4"),
    "fvd_str": ("v", "<f8"),
    "gatt_emptyarr": ("v", "<i4"),
    "gatt_range": ("v", "<i4"),
    "gatt_nanlist": ("v", "<i4"),
    "att_emptyarr": ("v", "<i4"),
    "att_range": ("v", "<i4"),
    "att_nanlist": ("v", "<i4"),
}

#: Variables that nobody can read, and what the error says.
BROKEN = {
    "fv_nan": ("v", "fill_value"),
    "fv_inf": ("v", "fill_value"),
    "fv_minf": ("v", "fill_value"),
    "fv_b64": ("v", "fill_value"),
    "fvd_b64": ("v", "fill_value"),
    "dt_nO": ("v", "object codec"),
}


def dataset(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(DATA / "handmade_a.zip") as archive:
        prefix = f"{name}/"
        objects = {
            entry.removeprefix(prefix): archive.read(entry)
            for entry in archive.namelist()
            if entry.startswith(prefix) and not entry.endswith("/")
        }
    if name.startswith("dt_") and name != "dt_nO":
        # all have the same chunk of 104 bytes; netCDF-C ignores what is too much, we do not
        metadata = json.loads(objects["v/.zarray"])
        dtype = metadata["dtype"]
        fields = [(field, kind) for field, kind in dtype] if isinstance(dtype, list) else dtype
        objects["v/0"] = objects["v/0"][: 4 * np.dtype(fields).itemsize]
    return objects


def readback(version: str = "4.10.1", mode: str = "mode=zarr,file") -> dict[str, dict[str, Any]]:
    """What the oracle read, by dataset, in the form of ``vectors/*.json``."""
    groups: dict[str, dict[str, Any]] = {}
    current: dict[str, Any] | None = None
    name = ""
    for line in (DATA / "handmade_a.readback.txt").read_text().splitlines():
        if not line.startswith(" "):
            name, given, release, *rest = line.split(" ", 3)
            wanted = given == mode and release == version and not any(rest)
            current = None
            name = name if wanted else ""
        elif name and (match := re.match(r"    (/\S*) dims=(.*) atts=(.*)", line)):
            path, dims, atts = match.groups()
            current = {
                "path": path,
                "dims": [
                    {"name": n, "len": size, "unlimited": unlimited}
                    for n, size, unlimited in ast.literal_eval(dims)
                ],
                "attrs": attributes(atts),
                "vars": [],
                "groups": [],
            }
            if path == "/":
                groups[name] = current
            else:
                groups[name]["groups"].append(current)
        elif current is not None and name:
            match = re.match(
                r"      (\S+) (\w+) (\[.*?\]) data=(.*) fill=(.*) ch=(.*) filt=.* atts=(.*)", line
            )
            assert match, line
            label, kind, dims, data, fill, chunks, atts = match.groups()
            sizes = {d["name"]: d["len"] for d in groups[name]["dims"] + current["dims"]}
            paths = ast.literal_eval(dims)
            current["vars"].append(
                {
                    "name": label,
                    "type": kind,
                    "dims": paths,
                    "shape": [sizes[path.rsplit("/", 1)[-1]] for path in paths],
                    "chunks": ast.literal_eval(chunks),
                    "fill": ast.literal_eval(fill),
                    "attrs": attributes(atts),
                    "data": ast.literal_eval(data),
                }
            )
    return groups


def attributes(text: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "type": kind, "len": size, "value": value}
        for name, kind, size, value in ast.literal_eval(text)
    ]


READ = {name: root for name, root in readback().items() if name not in ("rootarray", "shortchunk")}


@pytest.mark.parametrize("name", sorted(READ))
def test_equals_oracle(name: str) -> None:
    # netCDF-C takes no fill value of pure Zarr for a mask
    with open_hierarchy(dataset(name), use_zarr_fill_value_as_mask=False) as opened:
        lines = list(differences(opened, READ[name]))
    expected = [what for which, what in DELIBERATE if re.match(which, name)]
    assert [line for line in lines if not any(re.search(w, line) for w in expected)] == []
    assert all(any(re.search(w, line) for line in lines) for w in expected)


def test_the_readback_was_parsed() -> None:
    assert len(READ) > 25
    assert sum(len(root["vars"]) for root in READ.values()) > 25


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_reads_what_the_oracle_does_not(name: str) -> None:
    label, dtype = UNREAD[name]
    with open_hierarchy(dataset(name)) as opened:
        variable = opened.hierarchy.root.variables[label]
        assert variable.error is None
        data = opened.read(variable)
        assert data.dtype.itemsize == np.dtype(dtype).itemsize
        assert data.shape == (4,)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_variables_say_why(name: str) -> None:
    label, reason = BROKEN[name]
    with open_hierarchy(dataset(name)) as opened:
        variable = opened.hierarchy.root.variables[label]
        with pytest.raises(FormatError, match=reason):
            opened.read(variable)


def test_arrays_whose_dimension_has_another_length_are_read() -> None:
    with open_hierarchy(dataset("conflict")) as opened:
        a, b = (opened.hierarchy.root.variables[name] for name in "ab")
        assert [d.name for d in a.dimensions + b.dimensions] == ["x", f"x_{b.shape[0]}"]
        assert len(opened.read(a)) != len(opened.read(b))


def test_column_major_data_is_in_place() -> None:
    with open_hierarchy(dataset("orderF")) as opened:
        (variable,) = opened.hierarchy.root.variables.values()
        stored = READ["orderF"]["vars"][0]["data"]  # as they lie in the chunk
        assert opened.read(variable).tolist() == np.reshape(stored, (2, 2), order="F").tolist()


def test_scalars_of_empty_shape() -> None:
    with open_hierarchy(dataset("scalar")) as opened:
        variables = opened.hierarchy.root.variables
        assert {n: int(opened.read(v)) for n, v in variables.items()} == {"v": 42, "w": 43}


def test_long_chunk_is_an_error() -> None:
    objects = dataset("dt_nu1")
    objects["v/0"] += b"x"
    with open_hierarchy(objects) as opened:
        with pytest.raises(FormatError, match="v/0: decodes to 5 bytes, not 4"):
            opened.read(opened.hierarchy.root.variables["v"])


def test_short_chunk_is_an_error() -> None:
    with open_hierarchy(dataset("shortchunk")) as opened:
        with pytest.raises(FormatError, match=r"v/0.*truncated"):
            opened.read(opened.hierarchy.root.variables["v"])


def test_single_array_is_an_error() -> None:
    with pytest.raises(FormatError, match="single Zarr array"):
        open_hierarchy(dataset("rootarray"))


def test_untyped_arrays_keep_all_their_values() -> None:
    with open_hierarchy(dataset("atts")) as opened:
        values = {n: a.value for n, a in opened.hierarchy.root.variables["v"].attributes.items()}
    assert values["ss"] == ("a", "b")
    assert np.asarray(values["mix"]).tolist() == [1.0, 2.5]
