"""Chunk grid, codecs and type of stored elements: of an ``encoding``, or of the source.

An ``encoding`` has netCDF's or Zarr's names. A copy keeps what the format of its source states.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.codecs import registry
from nczarr_xarray.codecs.registry import as_zarr, encoding_keys, of_zarr3
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.form.chunk_shapes import cut_to, default_chunk_shape, largest_block, suits
from nczarr_xarray.formats.nczarr.limits import codec_problems
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.nczarr.values import fill_element
from nczarr_xarray.model import (
    NC_TYPES,
    Attribute,
    ChunkedArray,
    CodecConfig,
    FileChunks,
    FileStrides,
    Variable,
    netcdf_size,
)

#: Keys that concern values (CF); xarray has applied them already.
CF_KEYS = frozenset(
    {"dtype", "_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar"}
    | {"char_dim_name", "_Unsigned", "_Encoding"}
)
#: Keys that name other variables, of which writers make attributes (xarray's are the same).
RELATIONS = frozenset(
    {"coordinates", "bounds", "grid_mapping", "climatology", "geometry", "node_coordinates"}
    | {"node_count", "part_node_count", "interior_ring", "cell_measures", "formula_terms"}
)
_INFORMATION = frozenset(
    {"source", "original_shape", "preferred_chunks", "unlimited_dims", "shards", "serializer"}
    | {"endian", "object_codec"}
)
_ZARR_KEYS = frozenset({"compressor", "compressors", "filters"})
_CHUNK_KEYS = frozenset({"chunks", "chunksizes", "contiguous"})
QUANTIZE_KEYS = frozenset({"quantize_mode", "significant_digits", "least_significant_digit"})
_VALUE_KEYS = QUANTIZE_KEYS | {"_nczarr_maxstrlen"}


@dataclass(frozen=True, slots=True)
class StorageRequest:
    """The storage that is asked for one variable.

    Parameters
    ----------
    path
        Path of the array, without leading slash.
    dims, shape, unlimited
        Per dimension.
    dtype
        Dtype of the values after CF encoding; object for text.
    encoding
        The encoding that the user gave, or else the inherited one.
    explicit
        Whether the user gave it: then all of it must be possible. Inherited
        encoding is applied as far as possible.
    blocks
        dask's block lengths, if the data are dask's.
    fill
        ``_FillValue`` or None.
    text_length
        Bytes of the longest text.
    align
        Whether dask's blocks will be moved to borders of chunks.
    """

    path: str
    dims: tuple[Hashable, ...]
    shape: tuple[int, ...]
    unlimited: tuple[bool, ...]
    dtype: np.dtype
    encoding: Mapping[str, Any]
    explicit: bool
    blocks: tuple[tuple[int, ...], ...] | None
    fill: Any
    text_length: int
    align: bool

    @property
    def chunks_are_asked_for(self) -> bool:
        """Whether the user chose the chunks."""
        given = (self.encoding.get(key) for key in _CHUNK_KEYS)
        return self.explicit and any(one is not None and one is not False for one in given)


def netcdf_type(dtype: np.dtype) -> str | None:
    """Return the netCDF type name of encoded values; None if there is none."""
    if dtype.kind in "OU":
        return "string"
    if dtype.kind == "S":
        return "char" if dtype.itemsize == 1 else None
    return NC_TYPES.get(dtype.str[1:])


def text_dtype(longest: int, room: int = 0) -> np.dtype:
    """Return the dtype in which text is stored; ``_nczarr_maxstrlen`` is set to match.

    Parameters
    ----------
    longest
        Bytes of the longest text.
    room
        Bytes to reserve at least.
    """
    return np.dtype(f"S{max(longest, room, 2)}")  # with one byte it would be a char array


def note_text(variable: Variable, profile: Profile) -> None:
    """Add ``_Encoding`` to text in pure Zarr, without which xarray reads it as bytes."""
    text = variable.nc_type == "string" and variable.dtype.kind in "OU"
    if text and profile.generation == "v2":
        variable.attributes.setdefault("_Encoding", Attribute("_Encoding", "char", "utf-8"))


def storage(request: StorageRequest, profile: Profile) -> ChunkedArray:
    """Decide how a variable is stored.

    Raises
    ------
    ValueError
        If the encoding is impossible; the message says what is possible.
    """
    encoding = request.encoding
    if request.explicit:
        check_keys(encoding)
    dtype = _stored_dtype(request, profile)
    chunks = _chunk_shape(request, dtype)
    if profile.generation != "G2A" and not request.chunks_are_asked_for:
        # all older releases, and some readers of Zarr, refuse chunks longer than the variable
        chunks = cut_to(request.shape, chunks)
    array = ChunkedArray(
        path=request.path,
        shape=request.shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=fill_element(netcdf_type(request.dtype), request.fill, dtype, profile),
    )
    if not request.shape:
        return array
    if request.explicit:
        # netCDF-C shuffles text by 8 bytes, which other readers of Zarr undo for some lengths only
        text = profile.spelling is None and dtype.kind == "S" and dtype.itemsize > 1
        codecs = asked_codecs(encoding, dtype, shuffled=not (profile.portable or text))
        return replace(array, codecs=codecs)
    inherited = inherited_codecs(encoding, array)
    return replace(array, codecs=kept_codecs(inherited, array, profile))


def valid_keys() -> frozenset[str]:
    """Return all keys that `encoding` may have."""
    used = CF_KEYS | RELATIONS | encoding_keys() | _ZARR_KEYS | _CHUNK_KEYS | _VALUE_KEYS
    return used | {"endian", "preferred_chunks"}


def check_keys(encoding: Mapping[str, Any]) -> None:
    """Raise `ValueError` for keys that have no meaning here."""
    valid = valid_keys()
    unknown = sorted(str(key) for key in encoding if key not in valid | _INFORMATION)
    if unknown:
        raise ValueError(
            f"unexpected encoding parameters {unknown}; valid ones are {sorted(valid)}"
            f"{did_you_mean(unknown[0], valid)}"
        )
    compressor = encoding.get("compressor")
    if isinstance(compressor, str) and compressor != "auto":
        raise ValueError(f"compressor {compressor!r} is no codec of numcodecs")
    chunks, sizes = encoding.get("chunks"), encoding.get("chunksizes")
    if chunks is not None and sizes is not None and tuple(chunks) != tuple(sizes):
        raise ValueError(f"chunks {chunks} and chunksizes {sizes} differ")
    if encoding.get("shards") is not None:
        raise ValueError("'shards' exist in Zarr 3 only; NCZarr is Zarr 2")


def _stored_dtype(request: StorageRequest, profile: Profile) -> np.dtype:
    dtype, encoding = request.dtype, request.encoding
    if dtype.kind in "OU":
        length = encoding.get("_nczarr_maxstrlen")
        if length is None:
            return text_dtype(request.text_length)
        if not isinstance(length, (int, np.integer)) or length < 1:
            raise ValueError(f"_nczarr_maxstrlen is {length!r}, not a number of bytes")
        if request.text_length > length:
            raise ValueError(
                f"holds a text of {request.text_length} bytes, longer than its _nczarr_maxstrlen "
                f"{length}; text is never cut"
            )
        return text_dtype(request.text_length, int(length))
    endian = encoding.get("endian", "native")
    if endian not in ("native", "little", "big", None) and request.explicit:
        raise ValueError(f"endian is {endian!r}; it is 'native', 'little' or 'big'")
    big = endian == "big" or (endian != "little" and dtype.byteorder == ">")
    # before 4.9.3 netCDF-C stored the order of the machine whatever it recorded
    if big and profile.generation in ("G2L", "G2U") and not request.explicit:
        big = False
    return dtype.newbyteorder(">" if big else "<")


def _chunk_shape(request: StorageRequest, dtype: np.dtype) -> tuple[int, ...]:
    encoding, shape = request.encoding, request.shape
    if not shape:
        return ()
    given = encoding.get("chunks")
    if given is None:
        given = encoding.get("chunksizes")
    if given is not None and request.explicit:
        return _checked_chunks(given, shape)
    blocks, itemsize = request.blocks, 8 if request.dtype.kind == "O" else dtype.itemsize
    inherited = None if given is None else _inherited_chunks(given, request)
    if inherited is not None:
        if blocks is None or request.align or suits(blocks, inherited, itemsize):
            return inherited
    elif encoding.get("contiguous") and not any(request.unlimited) and blocks is None:
        return tuple(max(1, size) for size in shape)
    elif encoding.get("contiguous") and request.explicit:
        raise ValueError(
            "contiguous: it has an unlimited dimension, or dask blocks that would share its only "
            "chunk; leave contiguous out"
        )
    if blocks is not None:  # those that are shorter are moved to borders of these chunks
        return largest_block(blocks)
    return default_chunk_shape(shape, request.unlimited, itemsize)


def _inherited_chunks(chunks: Any, request: StorageRequest) -> tuple[int, ...] | None:
    """Return the chunk lengths of the source, if they suit the data in their present form."""
    try:
        lengths = [int(length) for length in chunks]
    except (TypeError, ValueError):
        return None
    named, dims = request.encoding.get("preferred_chunks"), {*request.dims}
    if isinstance(named, Mapping) and [*named.values()] == lengths and named.keys() >= dims:
        lengths = [named[name] for name in request.dims]  # the order may have changed
    if len(lengths) != len(request.shape) or any(length < 1 for length in lengths):
        return None
    original = request.encoding.get("original_shape")
    if original is None or tuple(original) != request.shape:
        too_long = (
            c > n and not u
            for c, n, u in zip(lengths, request.shape, request.unlimited, strict=True)
        )
        if any(too_long):
            return None
    return tuple(lengths)


def _checked_chunks(chunks: Any, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(chunks, (int, np.integer)):
        chunks = [chunks] * len(shape)
    try:
        lengths = tuple(int(chunk) for chunk in chunks)
    except (TypeError, ValueError):
        raise ValueError(f"chunk lengths {chunks!r} are not integers") from None
    if len(lengths) != len(shape):
        raise ValueError(f"chunk lengths {lengths} do not match its {len(shape)} dimensions")
    # as netCDF4 spells "all of it"
    lengths = tuple(max(1, n) if c in (0, -1) else c for c, n in zip(lengths, shape, strict=True))
    if any(length < 1 for length in lengths):
        raise ValueError(f"chunk lengths {lengths} are not positive")
    return lengths


@dataclass(frozen=True, slots=True)
class StorageProperties:
    """Storage of a variable.

    Parameters
    ----------
    dtype
        Dtype of the elements, with their byte order; object for text of any length.
    chunk_shape
        As many lengths as dimensions.
    codecs
        In the order of encoding.
    contiguous
        Whether the source has no chunks; `chunk_shape` is then the default.
    unfilled
        Whether the source is HDF5 without a fill value, not even the default of its type.
    """

    dtype: np.dtype
    chunk_shape: tuple[int, ...]
    codecs: tuple[CodecConfig, ...] = ()
    contiguous: bool = False
    unfilled: bool = False


def stored_as(opened: Opened, variable: Variable) -> StorageProperties:
    """Return what to keep of the storage of a variable of an open dataset.

    The byte order is kept, except that of classic files, which have only one. HDF5's pipelines are
    kept if netCDF and NCZarr have all their codecs, those of Zarr 3 as far as Zarr 2 has them. A
    variable without chunks gets the default chunks.
    """
    array = variable.array
    assert array is not None
    if array.codec_words == "zarr2":
        return StorageProperties(array.dtype, array.chunk_shape, array.codecs)
    classic = opened.hierarchy.generation.startswith("CDF-")
    dtype = variable.dtype.newbyteorder("=") if classic else variable.dtype
    unfilled = array.fill is None and not classic and isinstance(array, (FileChunks, FileStrides))
    if array.is_chunked and len(array.chunk_shape) == len(variable.shape):
        if array.codec_words == "hdf5":
            codecs = tuple(map(as_zarr, array.codecs))
            kept = all(registry.codec(config["id"]).netcdf for config in codecs)
        else:
            codecs, kept = of_zarr3(array.codecs), True
        chunks = tuple(max(1, length) for length in array.chunk_shape)
        return StorageProperties(dtype, chunks, codecs if kept else (), unfilled=unfilled)
    unlimited = [dimension.unlimited for dimension in variable.dimensions]
    itemsize = 8 if dtype.kind == "O" else dtype.itemsize
    chunks = default_chunk_shape(variable.shape, unlimited, itemsize)
    return StorageProperties(dtype, chunks, contiguous=not any(unlimited), unfilled=unfilled)


def netcdf_text(variable: Variable) -> Variable:
    """Return a variable of Zarr's bytes as netCDF has it: as char, or as string.

    ``_Encoding`` marks bytes of Zarr as text for xarray; a string needs no such mark. Single bytes
    along a dimension are char with or without it: xarray joins them to texts.
    """
    if variable.nc_type != "string" or variable.dtype.kind != "S":
        return variable
    attributes = dict(variable.attributes)
    marked = attributes.pop("_Encoding", None) is not None
    if variable.dtype.itemsize == 1 and (variable.dimensions or not marked):
        return replace(variable, nc_type="char")
    return replace(variable, attributes=attributes)


# -- codecs ----------------------------------------------------------------------------------------
# Those that are asked for, and those that data came with.


_log = logging.getLogger(__name__)


def asked_codecs(
    encoding: Mapping[str, Any], dtype: np.dtype, *, shuffled: bool
) -> tuple[CodecConfig, ...]:
    """Return the codecs that an encoding asks for, in the order of encoding.

    Parameters
    ----------
    shuffled
        Whether netCDF's compressors shuffle unless the encoding says otherwise.

    Raises
    ------
    ValueError
        If one of them is not known, or a parameter is not possible.
    """
    name = _compression(encoding)
    if encoding.get("complevel") == 0:  # none, as in netCDF4-python
        name = None
    if not _in_words_of_netcdf(encoding, name):
        return tuple(map(_config, _zarr_codecs(encoding)))
    if encoding.get("shuffle") is None and not shuffled:
        encoding = {**encoding, "shuffle": False}
    return tuple(map(_config, _netcdf_codecs(encoding, name, dtype)))


def kept_codecs(
    codecs: Iterable[Any], array: ChunkedArray, profile: Profile
) -> tuple[CodecConfig, ...]:
    """Return those codecs of the source that can be kept; the others are logged.

    Codecs that change values (scaling, rounding) are left out: they were applied to the values
    already, and might damage values that have replaced the old ones.

    Parameters
    ----------
    array
        The array to write, without codecs.
    """
    kept: list[CodecConfig] = []
    for given in codecs:
        try:
            config = _adapted(_config(given), array, profile)
            problem = _problem(config, array, profile)
        except (ValueError, TypeError) as error:
            problem = str(error)
        if problem is None:
            kept.append(config)
        else:
            _skip(array, given, problem)
    return tuple(kept)


def _skip(array: ChunkedArray, codec: Any, reason: object) -> None:
    _log.info("/%s: inherited codec %.80r is left out: %s", array.path, codec, reason)


def inherited_codecs(encoding: Mapping[str, Any], array: ChunkedArray) -> Iterable[Any]:
    """Return the codecs of the source, of Zarr 2 or 3: see `kept_codecs`."""
    level = encoding.get("complevel")
    if isinstance(level, (int, np.integer)) and level < 0:
        encoding = {**encoding, "complevel": None}  # only Zarr's libraries have negative levels
    try:
        name = _compression(encoding)
        if not _in_words_of_netcdf(encoding, name):
            return _zarr_codecs(encoding)
        return _netcdf_codecs(encoding, name, array.dtype)
    except (ValueError, TypeError) as error:
        _skip(array, encoding.get("compression"), error)
    return _netcdf_codecs(encoding, None, array.dtype)


def _adapted(config: CodecConfig, array: ChunkedArray, profile: Profile) -> CodecConfig:
    """Return a codec made suitable for the array (ValueError if the codec may change values)."""
    name = config["id"]
    if name == "gzip" and (profile.spelling or profile.portable):  # they differ in the header only
        config, name = {"id": "zlib", "level": config.get("level", 4)}, "zlib"
    if name == "shuffle":
        return {"id": "shuffle", "elementsize": netcdf_size(array.dtype)}
    if name == "szip":  # szip fails on chunks that it cannot make smaller
        config, name = {"id": "zlib", "level": 4}, "zlib"
    words = registry.codec("zlib" if name == "gzip" else name).netcdf
    if words and words.level and not registry.is_level(config.get(words.level, 0)):
        # -1 is zlib's default; lower levels are zstd's fast ones
        return {**config, words.level: words.below}
    if name == "delta":
        same = {np.dtype(config[key]) for key in ("dtype", "astype") if config.get(key)}
        if same != {array.dtype} or array.dtype.kind not in "iu":
            raise ValueError("it may change values")
    elif not registry.codec(name).lossless:
        raise ValueError("it may change values")
    return config


def _problem(config: CodecConfig, array: ChunkedArray, profile: Profile) -> str | None:
    """Say why the array cannot have this codec; None if it can."""
    found = codec_problems(config, array, profile)
    if found:
        return found[0]
    try:
        Encoder(replace(array, codecs=(config,)))
    except FormatError as error:
        return error.reason
    return None


def _in_words_of_netcdf(encoding: Mapping[str, Any], compression: str | None) -> bool:
    return bool(compression or encoding.get("shuffle") or encoding.get("fletcher32"))


def _netcdf_codecs(encoding: Mapping[str, Any], name: str | None, dtype: np.dtype) -> list[Any]:
    """Return shuffle, the compressor called `name` and the checksum, in netCDF-C's order.

    What netCDF has no name for is between them as Zarr's keys say it.
    """
    shuffle = encoding.get("shuffle")
    codecs: list[Any] = []
    words = None if name is None else registry.compression(name)
    if shuffle or (shuffle is None and words and words.shuffled):
        codecs.append({"id": "shuffle", "elementsize": netcdf_size(dtype)})
    if name is not None:
        codecs.append(_compressor(name, encoding))
    else:
        codecs += (codec for codec in _zarr_codecs(encoding) if not _has_word(codec))
    if encoding.get("fletcher32"):
        codecs.append({"id": "fletcher32"})
    return codecs


def _has_word(codec: Any) -> bool:
    """Tell whether a codec of a Zarr encoding is one that ``shuffle`` or ``fletcher32`` mean."""
    name = codec.get("id") if isinstance(codec, Mapping) else getattr(codec, "codec_id", None)
    return name in ("shuffle", "fletcher32")


def _compression(encoding: Mapping[str, Any]) -> str | None:
    """Return the name of the compressor that netCDF's keys ask for."""
    name = encoding.get("compression")
    if name is None:
        return registry.asked(encoding)
    name = "zlib" if name == "gzip" else name
    if registry.compression(name) is None:
        known = ", ".join(registry.compressions())
        raise ValueError(f"compression {name!r} is not known; known are {known}")
    return str(name)


def _compressor(name: str, encoding: Mapping[str, Any]) -> CodecConfig:
    level = encoding.get("complevel")
    options = encoding.get("compression_opts")  # of h5netcdf: a level, or options of another codec
    if level is None and isinstance(options, (int, np.integer)):
        level = options
    words = registry.compression(name)
    assert words is not None
    assert words.config is not None
    return words.config(name, encoding, 4 if level is None else int(level))


def _zarr_codecs(encoding: Mapping[str, Any]) -> list[Any]:
    """Return the codecs of a Zarr encoding, of any kind: the filters, then the compressor."""
    found: list[Any] = []
    for key in ("filters", "compressors", "compressor"):
        value = encoding.get(key)
        if key == "compressor" and encoding.get("compressors") is not None:
            continue
        if value is None or isinstance(value, str):
            continue  # "auto": the default here is none
        found += [value] if isinstance(value, Mapping) or not isinstance(value, Iterable) else value
    return found


def _config(codec: Any) -> CodecConfig:
    """Return the configuration of a codec of Zarr 2, or of an equal one of Zarr 3."""
    config = codec if isinstance(codec, Mapping) else None
    if config is None and hasattr(codec, "get_config"):
        config = codec.get_config()
    elif config is None and hasattr(codec, "to_dict"):
        stated = codec.to_dict()
        named = {"id": str(stated.get("name")), **(stated.get("configuration") or {})}
        config = registry.same_in_zarr2(named)
    if config is None or not isinstance(config.get("id"), str):
        raise ValueError(f"{codec!r:.80} is no codec of Zarr 2; use those of numcodecs")
    config = dict(config)
    if config["id"] == "zstd":
        config.pop("checksum", None)  # netCDF-C knows levels only
    return config
