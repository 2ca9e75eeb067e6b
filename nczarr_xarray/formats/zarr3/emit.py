"""The model as the ``zarr.json`` documents of Zarr 3, with xarray's convention for ``_FillValue``.

Nothing is lost silently: `problems` lists what Zarr 3 does not have.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.formats.nczarr import values
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, loads
from nczarr_xarray.formats.nczarr.spellings import PURE
from nczarr_xarray.formats.zarr3.array import FILE
from nczarr_xarray.model import Attribute, ChunkedArray, CodecConfig, Group, Variable, join

#: Codecs that are no codec of Zarr 3: a part of another one, and what a type implies.
_IMPLIED = frozenset({"shuffle", "vlen-utf8"})


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
        "data_type": data_type(array.dtype),
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
        if data_type(array.dtype) is None:
            yield f"{variable.path}: Zarr 3 has no type for {array.dtype}"
        for config in array.codecs:
            if not is_known(config):
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


def data_type(dtype: np.dtype) -> JSON:
    """Return the name of a data type; None if Zarr 3 does not have it."""
    if dtype.hasobject:
        return "string" if dtype.fields is None else None
    if dtype.kind == "S":
        return _named("null_terminated_bytes", length_bytes=values.integer(dtype.itemsize))
    known = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return dtype.name if known and dtype.fields is None else None


def is_known(config: CodecConfig) -> bool:
    """Tell whether a codec of Zarr 2 has a form in Zarr 3."""
    return config["id"] in _IMPLIED or codec(config["id"]).zarr3 is not None


def _codecs(array: ChunkedArray) -> list[JSON]:
    """Return the codecs of a chunk: elements to bytes, a compressor, a checksum."""
    single = array.dtype.itemsize == 1
    order: dict[str, JSON] = {} if single else {"endian": "little"}
    first = _named("vlen-utf8") if array.dtype.hasobject else _named("bytes", **order)
    shuffled = not single and array.dtype.kind != "S"
    shuffled = shuffled and any(config["id"] == "shuffle" for config in array.codecs)
    rows = ((codec(config["id"]), config) for config in array.codecs)
    told = [row.zarr3(config, shuffled) for row, config in rows if row.zarr3]
    told.sort(key=lambda config: config["id"] == "crc32c")  # of the bytes that are stored
    return [first, *(_told(config, array.dtype.itemsize) for config in told)]


def _told(config: CodecConfig, itemsize: int) -> JSON:
    """Return a codec of Zarr 3 as its metadata have it."""
    size = {"typesize": itemsize} if config["id"] == "blosc" else {}
    settings = {key: value for key, value in config.items() if key != "id"}
    stated = loads(json.dumps({**size, **settings}).encode(), FILE)
    return _named(config["id"], **cast("dict[str, JSON]", stated))


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
