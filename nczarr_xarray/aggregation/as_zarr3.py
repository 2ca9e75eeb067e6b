"""References of Zarr 2 as references of Zarr 3, which has chunk grids that Zarr 2 lacks. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.chunk_references import Grid, References
from nczarr_xarray.export.form.lacking import NO_MARKS, Lacking
from nczarr_xarray.formats.nczarr.attributes import NAMED_NUMBERS
from nczarr_xarray.formats.nczarr.emit import standard
from nczarr_xarray.formats.nczarr.jsontext import dumps
from nczarr_xarray.formats.zarr3.array import FILE
from nczarr_xarray.formats.zarr3.emit import data_type, encoded_fill

_TEXT = "vlen-utf8"
#: What chunks that do not exist read as, where Zarr 2 does not say it; of numbers, zero.
_EMPTY = {"b": False, "O": "", "S": ""}


def as_zarr3(
    references: Mapping[str, Any], grids: Mapping[str, Grid], lacking: Lacking
) -> References:
    """Return the same references with the documents and keys of Zarr 3.

    Parameters
    ----------
    references
        Of Zarr 2.
    grids
        The grids that are not regular, by path of the array, with a slash in front.
    lacking
        Notes what Zarr 3 does not have.

    Raises
    ------
    ExportError
        If Zarr 3 has no such type.
    """
    found: References = {}
    chunks: References = {}
    arrays: dict[str, dict[str, Any]] = {
        key.rpartition("/")[0]: json.loads(standard(text.encode(), ".zarray"))
        for key, text in references.items()
        if key.rpartition("/")[2] == ".zarray"
    }
    for key, value in references.items():
        path, _, name = key.rpartition("/")
        if name in (".zarray", ".zgroup"):
            prefix = key.removesuffix(name)
            stated = json.loads(references.get(f"{prefix}.zattrs", "{}"))
            mark = stated.pop("_FillValue", None)
            attributes = json.loads(standard(json.dumps(stated).encode(), ".zattrs"))
            if attributes != stated:
                lacking.note(NAMED_NUMBERS, f"/{path}")
            document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            if name == ".zarray":
                document |= _array(f"/{path}", arrays[path], grids.get(f"/{path}"), attributes)
                if not _marked(document, arrays[path], mark):
                    lacking.note(NO_MARKS, f"/{path}")
            found[f"{prefix}{FILE}"] = json.dumps(document)
        elif path in arrays and not name.startswith("."):
            place = f"/{name.replace('.', '/')}" if arrays[path]["shape"] else ""
            chunks[f"{path}/c{place}"] = value
    return {**found, **chunks}


def _marked(document: dict[str, Any], array: Mapping[str, Any], mark: Any) -> bool:
    """State what stands for missing data as xarray does in Zarr 3; tell whether that can be done.

    Parameters
    ----------
    mark
        ``_FillValue`` among the attributes of Zarr 2, where the fill value of numbers is one, too.
    """
    dtype, fill = np.dtype(array["dtype"]), array["fill_value"]
    if dtype.kind not in "iuf":
        return mark is None
    if fill is not None:
        if dtype.kind == "u" and "_Unsigned" in document["attributes"]:
            return False
        exact = encoded_fill(float(np.array(fill, dtype))) if dtype.kind == "f" else fill
        document["attributes"]["_FillValue"] = exact
    return True


def _array(
    path: str, array: Mapping[str, Any], grid: Grid | None, attributes: dict[str, Any]
) -> dict[str, Any]:
    """Return what an array has besides the members of any node."""
    dtype, fill = np.dtype(array["dtype"]), array["fill_value"]
    stated = dumps(data_type(dtype))
    if stated == "null":
        raise ExportError(path, f"is of a type that Zarr 3 does not have ({dtype}): leave it out")
    shown: dict[str, Any] = {"name": "regular", "configuration": {"chunk_shape": array["chunks"]}}
    if grid is not None:
        # (Icechunk 2.3 does not understand a length that stands for all)
        sizes = zip(grid, array["shape"], strict=True)
        each = ([n] * max(1, -(-size // n)) if isinstance(n, int) else n for n, size in sizes)
        configuration = {"kind": "inline", "chunk_shapes": [*map(_runs, each)]}
        shown = {"name": "rectilinear", "configuration": configuration}
    return {
        "node_type": "array",
        "shape": array["shape"],
        "data_type": json.loads(stated),
        "chunk_grid": shown,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _EMPTY.get(dtype.kind, 0) if fill is None else fill,
        "codecs": _codecs(array, dtype),
        "dimension_names": attributes.pop("_ARRAY_DIMENSIONS"),
    }


def _codecs(array: Mapping[str, Any], dtype: np.dtype) -> list[dict[str, Any]]:
    """Return the codecs, which all take bytes but that of text."""
    configs = [*(array["filters"] or ()), *filter(None, [array["compressor"]])]
    order = "big" if dtype.byteorder == ">" else "little"
    first: dict[str, Any] = {"name": "bytes", "configuration": {"endian": order}}
    if dtype.itemsize == 1 or dtype.kind == "S":
        first = {"name": "bytes"}
    if any(config["id"] == _TEXT for config in configs):
        first = {"name": _TEXT}
    others = (config for config in configs if config["id"] != _TEXT)
    return [first, *({"name": f"numcodecs.{c.pop('id')}", "configuration": c} for c in others)]


def _runs(lengths: Sequence[int]) -> list[int | list[int]]:
    """Return lengths with how often each follows."""
    counted = ((length, len([*same])) for length, same in itertools.groupby(lengths))
    return [length if count == 1 else [length, count] for length, count in counted]
