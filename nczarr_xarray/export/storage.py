"""From xarray's ``encoding``, in netCDF's or in Zarr's words, to a chunk grid and codecs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_xarray.export.attributes import NC_TYPES
from nczarr_xarray.export.grid import default_chunk_shape, uniform_chunks
from nczarr_xarray.formats.nczarr.emit import Profile
from nczarr_xarray.model import NC_DEFAULT_FILL, ChunkedArray, CodecConfig

#: Keys that decoding and encoding of values (CF) has used up.
CF_KEYS = frozenset(
    {"dtype", "_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar"}
    | {"coordinates", "grid_mapping", "char_dim_name", "_Unsigned", "_Encoding"}
)
_INFORMATION = frozenset(
    {"source", "original_shape", "preferred_chunks", "unlimited_dims", "shards", "serializer"}
    | {"endian", "object_codec"}
)
_NETCDF_KEYS = frozenset(
    {"compression", "zlib", "szip", "zstd", "bzip2", "blosc", "complevel", "shuffle", "fletcher32"}
    | {"blosc_shuffle", "szip_coding", "szip_pixels_per_block"}
)
_ZARR_KEYS = frozenset({"compressor", "compressors", "filters"})
_CHUNK_KEYS = frozenset({"chunks", "chunksizes", "contiguous"})
_VALUE_KEYS = frozenset(
    {"quantize_mode", "significant_digits", "least_significant_digit", "_nczarr_maxstrlen"}
)
#: Everything that `encoding` may hold.
VALID_KEYS = (
    CF_KEYS | _NETCDF_KEYS | _ZARR_KEYS | _CHUNK_KEYS | _VALUE_KEYS | {"endian", "preferred_chunks"}
)

QUANTIZE_ATTRIBUTES = {
    "BitGroom": "_QuantizeBitGroomNumberOfSignificantDigits",
    "GranularBitRound": "_QuantizeGranularBitRoundNumberOfSignificantDigits",
    "BitRound": "_QuantizeBitRoundNumberOfSignificantBits",
}
_BLOSC = {
    "blosc_lz": "blosclz",
    "blosc_lz4": "lz4",
    "blosc_lz4hc": "lz4hc",
    "blosc_snappy": "snappy",
    "blosc_zlib": "zlib",
    "blosc_zstd": "zstd",
}
_NAMES = ("zlib", "szip", "zstd", "bzip2", "blosc", *_BLOSC)
#: Byte shuffling comes with these unless it is turned off, as in netCDF4-python.
_SHUFFLED = frozenset({"zlib", "zstd", "bzip2"})


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the storage of one variable.

    Parameters
    ----------
    path
        Of the array, without leading slash.
    shape, unlimited
        Per dimension.
    dtype
        Of the values after CF encoding; object for text.
    encoding
        What the user gave, or else what the data came with.
    explicit
        Whether the user gave it: then everything must be possible. What data
        came with is followed as far as it can be.
    blocks
        dask's block lengths, if the data are dask's.
    fill
        ``_FillValue`` or None.
    text_length
        Bytes of the longest text.
    """

    path: str
    shape: tuple[int, ...]
    unlimited: tuple[bool, ...]
    dtype: np.dtype[Any]
    encoding: Mapping[str, Any]
    explicit: bool
    blocks: tuple[tuple[int, ...], ...] | None = None
    fill: Any = None
    text_length: int = 0


def netcdf_type(dtype: np.dtype[Any]) -> str | None:
    """netCDF type name of encoded values; None if there is none."""
    if dtype.kind in "OU":
        return "string"
    if dtype.kind == "S":
        return "char" if dtype.itemsize == 1 else None
    return NC_TYPES.get(dtype.str.lstrip("<>|="))


def shortest_text(profile: Profile) -> int:
    """Bytes that text has room for at least: in pure Zarr, one byte makes a char array."""
    return 2 if profile.generation == "v2" else 1


def storage(request: Request, profile: Profile) -> ChunkedArray:
    """Decide how a variable is stored.

    Raises
    ------
    ValueError
        Saying what of the encoding is impossible, and what is possible.
    """
    encoding = request.encoding
    if request.explicit:
        check_keys(encoding)
    dtype = _stored_dtype(request, profile)
    chunks = _chunk_shape(request, dtype)
    if profile.generation in ("G2L", "G2U") and not request.explicit:
        # these releases refuse chunks that are longer than the variable
        chunks = tuple(min(c, max(1, n)) for c, n in zip(chunks, request.shape, strict=True))
    codecs = _codecs(encoding, dtype) if request.shape else ()
    if profile.generation == "G2U" and not request.explicit:
        codecs = ()  # netCDF-C 4.8 has none
    return ChunkedArray(
        path=request.path,
        shape=request.shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=fill_element(netcdf_type(request.dtype), request.fill, dtype, profile),
        codecs=codecs,
    )


def check_keys(encoding: Mapping[str, Any]) -> None:
    """Raise `ValueError` if there are keys that mean nothing here."""
    unknown = sorted(str(key) for key in encoding if key not in VALID_KEYS | _INFORMATION)
    if unknown:
        raise ValueError(
            f"unexpected encoding parameters {unknown}; valid ones are {sorted(VALID_KEYS)}"
        )
    compressor = encoding.get("compressor")
    if isinstance(compressor, str) and compressor != "auto":
        raise ValueError(f"compressor {compressor!r} is no codec of numcodecs")
    chunks, sizes = encoding.get("chunks"), encoding.get("chunksizes")
    if chunks is not None and sizes is not None and tuple(chunks) != tuple(sizes):
        raise ValueError(f"chunks {chunks} and chunksizes {sizes} differ")
    if encoding.get("shards") is not None:
        raise ValueError("'shards' exist in Zarr 3 only; NCZarr is Zarr 2")


def _stored_dtype(request: Request, profile: Profile) -> np.dtype[Any]:
    dtype, encoding = request.dtype, request.encoding
    if dtype.kind in "OU":
        length = encoding.get("_nczarr_maxstrlen")
        if length is None:
            length = max(1, request.text_length)
        if not isinstance(length, (int, np.integer)) or length < 1:
            raise ValueError(f"_nczarr_maxstrlen is {length!r}, not a number of bytes")
        if request.text_length > length:
            raise ValueError(
                f"holds a text of {request.text_length} bytes, longer than its _nczarr_maxstrlen "
                f"{length}; nothing is cut off"
            )
        return np.dtype(f"S{max(length, shortest_text(profile))}")
    endian = encoding.get("endian", "native")
    if endian not in ("native", "little", "big", None):
        raise ValueError(f"endian is {endian!r}; it is 'native', 'little' or 'big'")
    big = endian == "big" or (endian != "little" and dtype.byteorder == ">")
    # before 4.9.3 netCDF-C stored the order of the machine whatever it recorded
    if big and profile.generation in ("G2L", "G2U") and not request.explicit:
        big = False
    return dtype.newbyteorder(">" if big else "<")


def fill_element(nc_type: str | None, fill: Any, dtype: np.dtype[Any], profile: Profile) -> Any:
    """What chunks that are not there read as.

    Parameters
    ----------
    nc_type, dtype
        Of the variable, and of its elements as stored.
    fill
        ``_FillValue`` or None.

    Raises
    ------
    ValueError
        If `fill` is a text that is too long.
    """
    if fill is None:
        if profile.generation == "v2" or nc_type is None:
            return None  # Zarr's readers take a fill value for a mask
        fill = NC_DEFAULT_FILL[nc_type]
    if dtype.kind == "S":
        data = fill if isinstance(fill, bytes) else str(fill).encode()
        if len(data) > dtype.itemsize:
            raise ValueError(f"_FillValue {fill!r} is longer than {dtype.itemsize} bytes")
        return data.rstrip(b"\0") if nc_type == "string" else data
    return np.asarray(fill).astype(dtype)[()]


def _chunk_shape(request: Request, dtype: np.dtype[Any]) -> tuple[int, ...]:
    encoding, shape = request.encoding, request.shape
    if not shape:
        return ()
    given = encoding.get("chunks")
    if given is None:
        given = encoding.get("chunksizes")
    if given is not None and (request.explicit or _still_fits(given, request)):
        return _checked_chunks(given, shape)
    if encoding.get("contiguous") and not any(request.unlimited) and request.blocks is None:
        return tuple(max(1, size) for size in shape)
    if encoding.get("contiguous") and request.explicit:
        raise ValueError("contiguous: it has an unlimited dimension, or dask would share one chunk")
    if request.blocks is not None:
        chunks = uniform_chunks(request.blocks)
        if chunks is None:
            raise ValueError(
                "its dask blocks do not make a chunk grid (all equal but the last, which may be "
                "shorter); give encoding['chunks'] with align_chunks=True, or rechunk it"
            )
        return chunks
    itemsize = 8 if request.dtype.kind == "O" else dtype.itemsize
    return default_chunk_shape(shape, request.unlimited, itemsize)


def _still_fits(chunks: Any, request: Request) -> bool:
    """Whether chunk lengths that the data came with suit what became of the data."""
    try:
        lengths = tuple(map(int, chunks))
    except (TypeError, ValueError):
        return False
    if len(lengths) != len(request.shape) or any(length < 1 for length in lengths):
        return False
    original = request.encoding.get("original_shape")
    if original is None or tuple(original) != request.shape:
        too_long = (
            c > n and not u
            for c, n, u in zip(lengths, request.shape, request.unlimited, strict=True)
        )
        return not any(too_long)
    return True


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


def _codecs(encoding: Mapping[str, Any], dtype: np.dtype[Any]) -> tuple[CodecConfig, ...]:
    """Codecs in the order of encoding: shuffle, compressor, checksum, as netCDF-C defines them."""
    name = _compression(encoding)
    shuffle = encoding.get("shuffle")
    if name is None and not shuffle and not encoding.get("fletcher32"):
        return _zarr_codecs(encoding)
    codecs: list[CodecConfig] = []
    if shuffle or (shuffle is None and name in _SHUFFLED):
        text = dtype.kind == "S" and dtype.itemsize > 1
        codecs.append({"id": "shuffle", "elementsize": 8 if text else dtype.itemsize})
    if name is not None:
        codecs.append(_compressor(name, encoding))
    if encoding.get("fletcher32"):
        codecs.append({"id": "fletcher32"})
    return tuple(codecs)


def _compression(encoding: Mapping[str, Any]) -> str | None:
    """Name of the compressor that netCDF's keys ask for."""
    name = encoding.get("compression")
    if name is None:
        asked = [flag for flag in ("zlib", "szip", "zstd", "bzip2", "blosc") if encoding.get(flag)]
        name = asked[-1] if asked else None
    elif name == "gzip":
        name = "zlib"
    if name is not None and name not in _NAMES:
        raise ValueError(f"compression {name!r} is not known; there are {', '.join(_NAMES)}")
    return name


def _compressor(name: str, encoding: Mapping[str, Any]) -> CodecConfig:
    level = encoding.get("complevel")
    level = 4 if level is None else int(level)
    if name == "zlib":
        return {"id": "zlib", "level": _in_range(level, 0, 9)}
    if name == "zstd":
        return {"id": "zstd", "level": _in_range(level, 0, 22)}
    if name == "bzip2":
        return {"id": "bz2", "level": _in_range(level, 1, 9)}
    if name == "szip":
        options = encoding["szip"] if isinstance(encoding.get("szip"), Mapping) else {}
        coding = encoding.get("szip_coding", options.get("coding", "nn"))
        pixels = encoding.get("szip_pixels_per_block", options.get("pixels_per_block", 8))
        if coding not in ("nn", "ec") or pixels not in range(2, 33, 2):
            raise ValueError("szip: coding is 'nn' or 'ec', pixels_per_block even and at most 32")
        return {"id": "szip", "mask": 32 if coding == "nn" else 4, "pixels-per-block": int(pixels)}
    options = encoding["blosc"] if isinstance(encoding.get("blosc"), Mapping) else {}
    name = _BLOSC.get(str(options.get("compressor", name)), "lz4")
    shuffle = encoding.get("blosc_shuffle", options.get("shuffle", 1))
    return {
        "id": "blosc",
        "cname": name,
        "clevel": _in_range(level, 0, 9),
        "shuffle": _in_range(int(shuffle), 0, 2),
        "blocksize": 0,
    }


def _in_range(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"{value} is not between {low} and {high}")
    return value


def _zarr_codecs(encoding: Mapping[str, Any]) -> tuple[CodecConfig, ...]:
    """Codecs in Zarr's words: filters, then the compressor."""
    found: list[Any] = []
    for key in ("filters", "compressors", "compressor"):
        value = encoding.get(key)
        if key == "compressor" and encoding.get("compressors") is not None:
            continue
        if value is None or isinstance(value, str):
            continue  # "auto": the default here is none
        found += [value] if isinstance(value, Mapping) or not isinstance(value, Iterable) else value
    return tuple(map(_config, found))


def _config(codec: Any) -> CodecConfig:
    config = codec if isinstance(codec, Mapping) else None
    if config is None and hasattr(codec, "get_config"):
        config = codec.get_config()
    if config is None or not isinstance(config.get("id"), str):
        raise ValueError(f"{codec!r:.80} is no codec of Zarr 2; use those of numcodecs")
    config = dict(config)
    if config["id"] == "zstd":
        config.pop("checksum", None)  # netCDF-C knows levels only
    return config
