"""Write CFA-0.4 as S3netCDF4 0.1, S3netCDF4 2 and cf-python read it."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.places.address import is_absolute
from nczarr_xarray.formats.cfa.dialect import Encoded
from nczarr_xarray.formats.cfa.table import is_netcdf, names_in_text, refuse
from nczarr_xarray.model import Fragments

_VERSION = "CFA-0.4"
#: The number of a variable, instead of its name.
_NUMBER = re.compile(r"#\d{1,18}")


def _format_of(name: str) -> str | None:
    """Return what CFA-0.4 calls a format; None if it has no word for it."""
    if is_netcdf(name):
        return "netCDF"
    return "NCZarr" if name.lower() in ("nczarr", "zarr") else None


def encode(name: str, dimensions: tuple[tuple[str, int], ...], fragments: Fragments) -> Encoded:
    """Spell a table of fragments; those that are missing are left out."""
    if fragments.values is not None:
        raise ExportError(name, f"has values instead of fragments, which {_VERSION} cannot say")
    if fragments.others:
        number = next(iter(fragments.others))
        raise refuse(name, fragments, number, "is in several datasets", _VERSION)
    names = names_in_text(name, dimensions, _VERSION)
    axes = [
        [(at, start, stop) for at, (start, stop) in enumerate(zip(*bounds, strict=True))]
        for bounds in zip(
            (starts.tolist() for starts in fragments.starts),
            (stops.tolist() for stops in fragments.stops),
            strict=True,
        )
    ]
    table: dict[str, Any] = {
        "Partitions": [
            {
                "index": [at for at, _, _ in place],
                "location": [[start, stop - 1] for _, start, stop in place],
                **_stored(
                    name, names, fragments, number, [stop - start for _, start, stop in place]
                ),
            }
            for number, place in enumerate(product(*axes))
            if fragments.addresses[number] is not None
        ],
        "pmdimensions": names,
        "pmshape": list(fragments.grid),
    }
    if any(address and not is_absolute(address) for address in fragments.addresses.tolist()):
        table["base"] = ""  # for cf-python: beside the master
    listed = " ".join(names)
    return Encoded(
        {
            "cf_role": "cfa_variable",
            "cfa_dimensions": listed,
            "cf_dimensions": listed,
            "cfa_array": json.dumps(table),
        }
    )


def _stored(
    name: str, names: list[str], fragments: Fragments, number: int, lengths: list[int]
) -> dict[str, Any]:
    """Return what is said of the file of a fragment, and of its mapping."""
    address, variable = fragments.addresses[number], fragments.names[number]
    kind = _format_of(fragments.formats[number])
    if kind is None:
        what = f"has the format {fragments.formats[number]!r}"
        raise refuse(name, fragments, number, what, _VERSION)
    mapping = fragments.mappings.get(number)
    shape = lengths
    if mapping is not None and mapping.axes is not None:
        shape = [1 if axis is None else lengths[axis] for axis in mapping.axes]
    stored: dict[str, Any] = {"shape": shape}
    if _NUMBER.fullmatch(variable):
        stored["varid"] = int(variable[1:])
    else:
        stored["ncvar"] = variable
    if address:
        stored["file"] = address
    stored["format"] = kind
    mapped = {} if mapping is None else _mapped(name, names, fragments, number, shape)
    return {"subarray": stored, **mapped}


def _mapped(
    name: str, names: list[str], fragments: Fragments, number: int, shape: list[int]
) -> dict[str, Any]:
    """Return what is said of the mapping of a fragment."""
    mapping = fragments.mappings[number]
    stated: dict[str, Any] = {}
    dimensions = names
    if mapping.axes is not None:
        dimensions = [
            f"cfa_{at}_{name}" if axis is None else names[axis]
            for at, axis in enumerate(mapping.axes)
        ]
    if mapping.part is not None:
        pieces = [_piece(piece, shape[at : at + 1]) for at, piece in enumerate(mapping.part)]
        if None in pieces:
            what = f"is cut at {mapping.part[pieces.index(None)]}"
            raise refuse(name, fragments, number, what, _VERSION)
        stated["part"] = f"[{', '.join(map(str, pieces))}]"
    if mapping.reverse:
        if max(mapping.reverse) >= len(dimensions):
            what = "runs backwards along a dimension that the data lack"
            raise refuse(name, fragments, number, what, _VERSION)
        stated["reverse"] = [dimensions[at] for at in mapping.reverse]
    if mapping.axes is not None:
        stated["pdimensions"] = dimensions
    if mapping.units is not None:
        stated["punits"] = mapping.units
    if mapping.calendar is not None:
        stated["pcalendar"] = mapping.calendar
    return stated


def _piece(piece: slice | tuple[int, ...], length: list[int]) -> str | None:
    """Return what of a dimension counts, with its last position; None if that cannot be said.

    Parameters
    ----------
    length
        How much of the dimension counts, if it is known.
    """
    if isinstance(piece, tuple):
        return f"({', '.join(map(str, piece))}{',' * (len(piece) == 1)})"
    start, stop, step = piece.start, piece.stop, 1 if piece.step is None else piece.step
    if step > 0:
        start = start or 0
        if stop is None and length:
            stop = start + length[0] * step
        last = -1 if stop is None else stop - 1
    else:
        last = 0 if stop is None else stop + 1
    if start is None or min(start, last) < 0 or (stop is not None and stop < 0):
        return None
    return f"[{start}, {last}, {step}]"
