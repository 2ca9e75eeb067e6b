"""Limits of formats: what a given release of netCDF-C would not read back.

Rules are those of netCDF-C's sources; "observed" marks what was found by writing
such datasets and reading them with 4.9.0, 4.9.1 and 4.10.1.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from nczarr_fsspec.keystore import is_safe_name
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.formats.nczarr import values
from nczarr_xarray.formats.nczarr.attributes import HIDDEN
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import (
    NC_DTYPES,
    NC_HIDDEN,
    Attribute,
    ChunkedArray,
    CodecConfig,
    Group,
    Variable,
    described,
    is_below,
    netcdf_size,
)

_RELEASES = {
    "G2A": "netCDF-C 4.9.3 and later",
    "G2L": "netCDF-C 4.9.2",
    "G2U": "netCDF-C 4.8.1",
    "v2": "pure Zarr",
}
#: Names that netCDF takes. More first characters are allowed than documented.
NAME = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff][^\x00-\x1f\x7f/]*(?<! )")
#: Bytes of a name. netCDF allows one more, but file systems have no name for such an array.
_LONGEST = 255
#: Must be written as \u escapes, which netCDF-C does not know (observed).
_CONTROL = re.compile(r"[\x01-\x07\x0b\x0e-\x1f]")
_NOT_PORTABLE = "with portable=True there is only what every reader of Zarr 2 has"


def problems(root: Group, profile: Profile) -> list[str]:
    """Return everything in a hierarchy that the readers of `profile` would not read back.

    What pure Zarr always loses (attribute types, unlimited and unused
    dimensions) is no problem there.

    Returns
    -------
    list of str
        One line each, naming the object: ``"/g1/v: ..."``.
    """
    return list(_Check(root, profile).lines())


def codec_problems(config: CodecConfig, array: ChunkedArray, profile: Profile) -> list[str]:
    """Say why the readers of `profile` would not undo a codec of this array; see `problems`."""
    return list(_Check(Group(), profile).codec(config, array))


def consistently_named(group: Group) -> set[str]:
    """Return the names of variables whose ``_ARRAY_DIMENSIONS`` contradict none before them.

    The short names leave out the group of a dimension. So one name may
    mean two lengths, which no reader of ``_ARRAY_DIMENSIONS`` accepts.
    """
    lengths: dict[str, int] = {}
    consistent = set()
    for name, variable in group.variables.items():
        own = {dim.name: dim.size for dim in variable.dimensions}
        if all(
            lengths.get(dim.name, dim.size) == own[dim.name] == dim.size
            for dim in variable.dimensions
        ):
            consistent.add(name)
            lengths |= own
    return consistent


class _Check:
    def __init__(self, root: Group, profile: Profile) -> None:
        self.root = root
        self.profile = profile
        self.netcdf = profile.spelling is not None
        self.old = profile.generation in ("G2L", "G2U")
        self.reader = _RELEASES[profile.generation]

    def lines(self) -> Iterator[str]:
        for group in self.root.walk():
            yield from _about(group.path, self.group(group))
            named = consistently_named(group)
            for name, variable in group.variables.items():
                yield from _about(variable.path, self.variable(variable))
                if not self.netcdf and self.profile.array_dimensions and name not in named:
                    yield (
                        f"{variable.path}: its dimensions have lengths that other variables "
                        "contradict, and pure Zarr has dimensions by name only"
                    )

    # -- names and groups --------------------------------------------------------

    def group(self, group: Group) -> Iterator[str]:
        if group is not self.root:
            yield from self.key(group.name)
        yield from self.attributes(group.attributes)
        for name in group.variables.keys() & group.groups.keys():
            yield f"a variable and a group are both called {name!r}"
        for name, dim in group.dimensions.items():
            where = f"dimension {name!r}"
            if self.netcdf:
                yield from _about(where, self.name(name))
            if self.old and dim.size == 0:
                yield f"{where}: {self.reader} has no dimensions of length 0 in NCZarr"
            elif self.old and dim.unlimited:
                yield (
                    f"{where}: {self.reader} has no unlimited dimensions in NCZarr; 'nczarr copy "
                    "--fixed' makes them fixed"
                )

    def key(self, name: str) -> Iterator[str]:
        """Check a name that becomes part of a key; yield problems."""
        if not is_safe_name(name) or name.startswith("."):
            yield f"{name!r} cannot be the name of a group or variable"
        elif self.netcdf:
            yield from self.name(name)
        elif "\\" in name:
            yield "has a backslash in its name, which zarr-python takes for a slash"
        elif not _encodable(name):
            yield f"{name!r} is not valid Unicode"

    def name(self, name: str) -> Iterator[str]:
        if NAME.fullmatch(name) is None:
            yield f"{name!r} is not a name that netCDF allows"
        elif not _encodable(name):
            yield f"{name!r} is not valid Unicode"
        elif not unicodedata.is_normalized("NFC", name):
            yield f"{name!r} is not in Unicode's normal form C, which netCDF demands"
        elif len(name.encode()) > _LONGEST:
            yield f"has a name of more than {_LONGEST} bytes"

    # -- attributes --------------------------------------------------------------

    def attributes(self, attributes: dict[str, Attribute]) -> Iterator[str]:
        for name, attribute in attributes.items():
            yield from _about(f"attribute {name!r}", self.attribute(name, attribute))

    def attribute(self, name: str, attribute: Attribute) -> Iterator[str]:
        if name in (HIDDEN | NC_HIDDEN if self.netcdf else HIDDEN):
            yield "the name is reserved: readers would not show it"
        elif self.netcdf:
            yield from self.name(name)
        elif not _encodable(name):
            yield "the name is not valid Unicode"
        value = attribute.value
        if attribute.type not in NC_DTYPES:
            yield f"{attribute.type!r} is not a type of netCDF"
        elif isinstance(value, np.ndarray):
            if value.dtype != NC_DTYPES[attribute.type] or value.ndim != 1:
                yield f"is a {value.ndim}-D array of {value.dtype}, not 1-D of {attribute.type}"
        elif self.profile.generation == "G2U" and attribute.type == "string":
            yield f"{self.reader} has no strings in NCZarr: make it char"
        else:
            for text in (value,) if isinstance(value, str) else value:
                yield from self.text(text)

    def text(self, text: str) -> Iterator[str]:
        if not _encodable(text):
            yield "holds bytes that are not UTF-8"
        elif self.netcdf and "\0" in text:
            yield "holds a NUL character, at which netCDF-C cuts text"
        elif self.netcdf and _CONTROL.search(text):
            yield "holds control characters that netCDF-C cannot read back"

    # -- variables ---------------------------------------------------------------

    def variable(self, variable: Variable) -> Iterator[str]:
        yield from self.key(variable.name)
        yield from self.attributes(variable.attributes)
        array = variable.array
        if variable.error is not None:
            yield f"cannot be read: {variable.error.reason}"
        elif not isinstance(array, ChunkedArray):
            yield "has no chunk grid"
        else:
            yield from self.grid(variable, array)
            yield from self.dtype(variable, array)
            yield from self.fill(array)
            yield from self.codecs(array, text=variable.nc_type == "string")

    def grid(self, variable: Variable, array: ChunkedArray) -> Iterator[str]:
        shape, chunks = array.shape, array.chunk_shape
        if variable.shape != shape:
            yield f"has shape {shape}, but dimensions of lengths {variable.shape}"
        if len(chunks) != len(shape) or 0 in chunks:
            yield f"chunks {chunks} do not fit shape {shape}"
        elif self.old and any(c > max(n, 1) for c, n in zip(chunks, shape, strict=True)):
            yield f"{self.reader} cannot read chunks {chunks} longer than the shape {shape}"
        if self.netcdf and array.order == "F" and len(shape) > 1:
            yield "netCDF-C ignores order 'F': the data would come out transposed"
        if self.profile.generation == "G2U" and not shape:
            yield f"{self.reader} crashes on scalars: give it a dimension of length 1"
        for dim in variable.dimensions if self.netcdf else ():
            owner = self.root.find(dim.group)
            inside = is_below(variable.group, dim.group)
            if owner is None or owner.dimensions.get(dim.name) != dim or not inside:
                yield f"dimension {dim.path!r} is declared in none of the groups it is in"

    def dtype(self, variable: Variable, array: ChunkedArray) -> Iterator[str]:
        nc_type, dtype = variable.nc_type, array.dtype
        if not self.netcdf:
            yield from pure_type(variable.dtype, array.dtype, array.codecs)
        elif nc_type not in NC_DTYPES:
            reason = f"NCZarr has no type for {described(variable.dtype)}"
            zarr = not any(pure_type(variable.dtype, array.dtype, array.codecs))
            yield f"{reason}: convert it{', or write pure Zarr (mode=zarr)' if zarr else ''}"
        elif nc_type == "string" and self.profile.generation == "G2U":
            yield f"{self.reader} has no strings in NCZarr: make it a char array"
        elif nc_type == "string" and dtype.kind != "S":
            yield f"NCZarr stores strings of a fixed length, not {dtype}"
        elif nc_type != "string" and dtype.newbyteorder("=") != NC_DTYPES[nc_type]:
            yield f"{dtype} is not the type {nc_type}"
        elif self.old and dtype.str[0] == ">":
            yield f"{self.reader} ignores the byte order: store it little-endian"

    def fill(self, array: ChunkedArray) -> Iterator[str]:
        try:
            text = values.fill_value(array, self.profile)
        except (ValueError, TypeError, OverflowError) as error:
            yield f"fill value {array.fill!r:.80} cannot be stored as {array.dtype} ({error})"
            return
        if array.dtype.kind in "SUO" and isinstance(text, str):
            yield from _about("fill value", self.text(text))

    def codecs(self, array: ChunkedArray, *, text: bool) -> Iterator[str]:
        if array.codecs and self.profile.generation == "G2U":
            yield from self.codec(array.codecs[0], array, text=text)  # one problem is enough
            return
        for config in array.codecs:
            yield from _about(f"codec {config['id']!r}", self.codec(config, array, text=text))
        if self.profile.portable and len(array.codecs) > 1:
            yield f"{_NOT_PORTABLE}: use one compressor and no filters"

    def codec(
        self, config: CodecConfig, array: ChunkedArray, *, text: bool = False
    ) -> Iterator[str]:
        name = config["id"]
        if not self.netcdf:
            if self.profile.portable and not codec(name).portable:
                yield f"{_NOT_PORTABLE}: use zlib or blosc"
            if name == "shuffle" and array.codecs[:1] in ((), (config,)):
                nbytes = math.prod(array.chunk_shape) * array.dtype.itemsize
                size = config.get("elementsize")
                if isinstance(size, int) and size > 0 and nbytes % size:
                    reason = f"{nbytes} bytes of a chunk are not shuffled by {size}"
                    yield f"readers of Zarr cannot undo it: {reason}"
            return
        if self.profile.generation == "G2U":
            yield f"{self.reader} has no compression or filters in NCZarr"
        elif (words := codec(name).netcdf) is None:
            yield "netCDF-C does not have it: use zlib, zstd, bz2, blosc or szip"
        else:
            yield from self.settings(config, words.needs, array, text=text)

    def settings(
        self, config: CodecConfig, needs: Iterable[str], array: ChunkedArray, *, text: bool
    ) -> Iterator[str]:
        """Check the parameters of a codec that netCDF-C has; yield problems."""
        name = config["id"]
        for setting in needs:
            if not isinstance(config.get(setting), int) or config[setting] < 0:
                yield f"netCDF-C needs {setting!r}, and not a negative one"
                return
        if name in ("blosc", "szip") and not array.shape:
            yield "netCDF-C refuses it on scalars"
        elif name == "szip" and math.prod(array.chunk_shape) < config["pixels-per-block"]:
            yield "a chunk has fewer elements than one block"
        elif name == "shuffle" and config.get("elementsize"):
            size = netcdf_size(array.dtype, text=text)
            if config["elementsize"] != size:
                yield f"netCDF-C shuffles this type by {size} bytes only"


def pure_type(read_as: np.dtype, dtype: np.dtype, codecs: Iterable[CodecConfig]) -> Iterator[str]:
    """Say why pure Zarr 2 does not have a type, as of `problems`; there is one line at most."""
    coded = any(config["id"] in ("vlen-utf8", "vlen-bytes") for config in codecs)
    if dtype.kind not in "biufcmMSUVO" or (dtype.hasobject and dtype.kind != "O"):
        yield f"Zarr 2 has no type for {dtype}"
    elif dtype.kind == "O" and not coded:
        yield f"Zarr has no type for {described(read_as)}: convert it"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _about(what: str, lines: Iterator[str]) -> Iterator[str]:
    return (f"{what}: {line}" for line in lines)
