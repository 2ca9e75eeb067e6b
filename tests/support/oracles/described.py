"""Everything that netCDF-C says of a dataset, to be compared; and what of it may differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

from nczarr_xarray.cli.main import main
from nczarr_xarray.model import ChunkedArray
from tests.support.oracles.netcdf_c import netcdf_model


def described(url: str) -> dict[str, Any]:
    """Everything that netCDF-C tells of a dataset, by what it is about."""
    found: dict[str, Any] = {}
    with netCDF4.Dataset(url) as dataset:
        for group in netcdf_model(url).walk():
            place = dataset if group.path == "/" else dataset[group.path]
            found[f"{group.path} groups"] = sorted(group.groups)
            for name, dimension in group.dimensions.items():
                found[f"{group.path} dimension {name}"] = (dimension.size, dimension.unlimited)
            for name, attribute in group.attributes.items():
                found[f"{group.path}@{name}"] = attribute_bits(attribute)
            for name, variable in group.variables.items():
                path = variable.path
                assert isinstance(variable.array, ChunkedArray)
                found[f"{path} type"] = variable.nc_type
                found[f"{path} byte order"] = variable.array.dtype.byteorder
                found[f"{path} dimensions"] = [d.path for d in variable.dimensions]
                found[f"{path} fill"] = bits(variable.array.fill)
                found |= {
                    f"{path}@{key}": attribute_bits(attribute)
                    for key, attribute in variable.attributes.items()
                }
                found |= stored(path, place.variables[name])
    return found


def attribute_bits(attribute: Any) -> tuple[str, Any]:
    value = attribute.value
    # netCDF-C makes one NUL of empty text in NCZarr
    value = value.rstrip("\0") if isinstance(value, str) else value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = np.where(np.isnan(value), np.nan, value).astype(value.dtype)  # JSON has one NaN
    return attribute.type, bits(value)


def bits(value: Any) -> Any:
    return value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else value


def stored(path: str, variable: netCDF4.Variable) -> dict[str, Any]:
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    data = np.asarray(variable[...])
    native = data.astype(data.dtype.newbyteorder("="))
    values = data.tolist() if data.dtype.kind == "O" else bits(native)
    found: dict[str, Any] = {f"{path} data": (data.shape, values)}
    if variable.shape:
        found[f"{path} chunks{' of text' if variable.dtype is str else ''}"] = variable.chunking()
        found[f"{path} filters"] = variable.filters() or {}
    return found


def different(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What is not the same, and both values."""
    keys = ours.keys() | theirs.keys()
    found = {key: (ours.get(key), theirs.get(key)) for key in sorted(keys)}
    return {
        key: pair
        for key, pair in found.items()
        if pair[0] != pair[1] and not any(allowed(key, *pair) for allowed in ALLOWED.values())
    }


def _one_piece(key: str, ours: Any, theirs: Any) -> bool:
    return key.endswith(" chunks") and theirs == "contiguous"


def _one_text(key: str, ours: Any, theirs: Any) -> bool:
    return isinstance(theirs, tuple) and theirs == ("string", (ours and ours[1],))


def _text_chunks(key: str, ours: Any, theirs: Any) -> bool:
    return key.endswith(" chunks of text")


def _no_fill(key: str, ours: Any, theirs: Any) -> bool:
    return key.endswith(" fill") and theirs is None


def _szip(key: str, ours: Any, theirs: Any) -> bool:
    return became_zlib("szip", key, ours, theirs)


def became_zlib(codec: str, key: str, ours: Any, theirs: Any) -> bool:
    if not key.endswith(" filters") or not theirs.get(codec):
        return False
    others = theirs.keys() - {codec, "zlib", "complevel", "shuffle"}
    return ours["zlib"] and not ours[codec] and all(ours[name] == theirs[name] for name in others)


#: What may differ, and how it shows.
ALLOWED: dict[str, Callable[[str, Any, Any], bool]] = {
    "HDF5 stores a variable in one piece; NCZarr knows chunks only": _one_piece,
    "netCDF4-python does not tell a text that is a string from one that is char": _one_text,
    "xarray 2026.9 forgets the encoding of strings": _text_chunks,
    "xarray does not tell that a variable is not filled in advance": _no_fill,
    "szip fails on what it cannot make smaller: data that come with it get zlib": _szip,
}


def url_of(path: Path | str) -> str:
    return f"file://{path}#mode=nczarr,file"


def convert(source: str, target: str, *options: str) -> None:
    """Do ``nczarr copy``, which must lose nothing."""
    assert main(["copy", source, target, *options]) == 0
