"""The model as the ``zarr.json`` documents of Zarr 3, with xarray's convention for ``_FillValue``.

Nothing is lost silently: `problems` lists what Zarr 3 does not have.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from nczarr_xarray.codecs.registry import BLOSC_SHUFFLES
from nczarr_xarray.formats.nczarr import values
from nczarr_xarray.formats.nczarr.enums import as_flags
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, loads
from nczarr_xarray.formats.nczarr.profiles import PURE
from nczarr_xarray.formats.zarr3.array import FILE
from nczarr_xarray.model import Attribute, ChunkedArray, CodecConfig, Group, Variable, join

#: Compressors that Zarr 3 has, by their names in Zarr 2; blosc does some of them with shuffling.
_COMPRESSORS = {"zlib": "gzip", "gzip": "gzip", "zstd": "zstd", "blosc": "blosc"}
_IN_BLOSC = {"gzip": "zlib", "zstd": "zstd"}
_BLOSC_LEVELS = 9
#: The level that zstd takes itself.
_OF_ZSTD = 3
#: Codecs with a form in Zarr 3.
CODECS = frozenset({*_COMPRESSORS, "shuffle", "fletcher32", "vlen-utf8"})


def documents(root: Group, shards: Mapping[str, Sequence[int]]) -> dict[str, bytes]:
    """Return every ``zarr.json`` of a hierarchy by its key, in the order in which to write them.

    Parameters
    ----------
    root
        Its variables have `ChunkedArray`, with codecs in the words of Zarr 2.
    shards
        Shapes of shards by path of the variable; others have chunks without shards.

    Returns
    -------
    dict
        Arrays, then groups from the leaves up. The last one is the root.
    """
    found = {
        _key(variable.path): dumps(array_document(variable, shards.get(variable.path)))
        for variable in root.all_variables()
    }
    for group in reversed(list(root.walk())):
        found[_key(group.path)] = dumps(_node("group", group.attributes.values()))
    return {key: text.encode() for key, text in found.items()}


def consolidate(documents: Mapping[str, bytes]) -> bytes:
    """Return the document of the root with all others in it, as zarr-python has them."""
    below = {
        key.removesuffix(f"/{FILE}"): loads(data, key)
        for key, data in documents.items()
        if key != FILE
    }
    inline = {"kind": "inline", "must_understand": False, "metadata": below}
    return dumps({**loads(documents[FILE], FILE), "consolidated_metadata": inline}).encode()


def array_document(variable: Variable, shard: Sequence[int] | None) -> dict[str, JSON]:
    """Return the ``zarr.json`` of a variable; `shard` is the shape of its shards."""
    array = variable.array
    assert isinstance(array, ChunkedArray)
    attributes = as_flags(variable) if variable.enum is not None else variable.attributes
    codecs = _codecs(array)
    if shard is not None:
        codecs = [_sharding(array.chunk_shape, codecs)]
    fill: JSON = "" if array.dtype.hasobject else values.fill_value(array, PURE)
    if array.dtype.hasobject and isinstance(array.fill, str):
        fill = array.fill
    return {
        **_node("array", attributes.values(), array.dtype),
        "shape": _integers(array.shape),
        "data_type": _data_type(array.dtype),
        "chunk_grid": _named("regular", chunk_shape=_integers(shard or array.chunk_shape)),
        "chunk_key_encoding": _named("default", separator="/"),
        "fill_value": fill,
        "codecs": codecs,
        "dimension_names": [dimension.name for dimension in variable.dimensions],
    }


def problems(root: Group) -> Iterator[str]:
    """Yield what Zarr 3 does not have of a hierarchy, besides that which Zarr 2 lacks already."""
    for group in root.walk():
        for name in (*group.groups, *group.variables):
            if name == FILE:
                yield f"{join(group.path, name)}: Zarr 3 has its metadata in objects of this name"
    for variable in root.all_variables():
        array = variable.array
        if not isinstance(array, ChunkedArray):
            continue  # reported as unreadable
        if _data_type(array.dtype) is None:
            yield f"{variable.path}: Zarr 3 has no type for {array.dtype}"
        for config in array.codecs:
            if config["id"] not in CODECS:
                lacks = f"Zarr 3 does not have codec {config['id']!r}"
                yield f"{variable.path}: {lacks}: use zlib, zstd, blosc or none"


def _key(path: str) -> str:
    return f"{path.strip('/')}/{FILE}".lstrip("/")


def _node(
    kind: str, attributes: Iterable[Attribute], dtype: np.dtype | None = None
) -> dict[str, JSON]:
    stated = {
        one.name: _fill_value(one, dtype)
        if one.name == "_FillValue" and dtype is not None
        else values.attribute_value(one, PURE)
        for one in attributes
    }
    return {"zarr_format": values.integer(3), "node_type": kind, "attributes": stated}


def _fill_value(attribute: Attribute, dtype: np.dtype) -> JSON:
    """Return ``_FillValue`` as xarray states it."""
    value = attribute.value
    if dtype.kind == "f" and isinstance(value, np.ndarray) and value.size:
        return encoded_fill(float(value[0]))
    if dtype.kind == "S" and isinstance(value, str):
        return encoded_fill(value.encode("utf-8", "surrogateescape"))
    return values.attribute_value(attribute, PURE)


def encoded_fill(value: float | bytes) -> str:
    """Return a ``_FillValue`` of floats or bytes as xarray states it, in base64."""
    data = value if isinstance(value, bytes) else struct.pack("<d", value)
    return base64.standard_b64encode(data).decode()


def _data_type(dtype: np.dtype) -> JSON:
    """Return the name of a data type; None if Zarr 3 does not have it."""
    if dtype.hasobject:
        return "string" if dtype.fields is None else None
    if dtype.kind == "S":
        return _named("null_terminated_bytes", length_bytes=values.integer(dtype.itemsize))
    known = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return dtype.name if known and dtype.fields is None else None


def _codecs(array: ChunkedArray) -> list[JSON]:
    """Return the codecs of a chunk: elements to bytes, a compressor, a checksum."""
    names = {config["id"]: config for config in array.codecs}
    single = array.dtype.itemsize == 1
    order: dict[str, JSON] = {} if single else {"endian": "little"}
    found = [_named("vlen-utf8") if array.dtype.hasobject else _named("bytes", **order)]
    shuffled = "shuffle" in names and not single and array.dtype.kind != "S"
    found += [
        _compressor(config, array.dtype.itemsize, shuffled=shuffled)
        for config in array.codecs
        if config["id"] in _COMPRESSORS
    ]
    if "fletcher32" in names:
        found.append(_named("crc32c"))
    return found


def _compressor(config: CodecConfig, itemsize: int, *, shuffled: bool) -> JSON:
    """Return a compressor; one with byte shuffling is a part of blosc, as Zarr 3 has no other."""
    name = _COMPRESSORS[config["id"]]
    level = int(config.get("level", 4))
    if name == "blosc":
        shuffle = dict(enumerate(BLOSC_SHUFFLES)).get(config.get("shuffle", 1), "shuffle")
        return _blosc(config.get("cname", "lz4"), config.get("clevel", 5), shuffle, itemsize)
    if shuffled:
        own = name == "zstd" and level == 0  # what zstd takes itself; of blosc, no compression
        clevel = _OF_ZSTD if own else min(level, _BLOSC_LEVELS)
        return _blosc(_IN_BLOSC[name], clevel, "shuffle", itemsize)
    if name == "zstd":
        return _named("zstd", level=values.integer(level), checksum=False)
    return _named("gzip", level=values.integer(level))


def _blosc(cname: str, level: int, shuffle: str, itemsize: int) -> JSON:
    return _named(
        "blosc",
        typesize=values.integer(itemsize),
        cname=cname,
        clevel=values.integer(level),
        shuffle=shuffle,
        blocksize=values.integer(0),
    )


def _sharding(chunks: Sequence[int], codecs: list[JSON]) -> JSON:
    index = [_named("bytes", endian="little"), _named("crc32c")]
    return _named(
        "sharding_indexed",
        chunk_shape=_integers(chunks),
        codecs=codecs,
        index_codecs=index,
        index_location="end",
    )


def _named(name: str, **configuration: JSON) -> JSON:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def _integers(numbers: Iterable[int]) -> list[JSON]:
    return [values.integer(number) for number in numbers]
