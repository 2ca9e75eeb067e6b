"""Codecs from xarray's ``encoding``: those that are asked for, and those that data came with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.formats.nczarr.limits import codec_problems
from nczarr_xarray.formats.nczarr.profiles import Profile
from nczarr_xarray.formats.nczarr.values import shuffle_size
from nczarr_xarray.model import ChunkedArray, CodecConfig

_log = logging.getLogger("nczarr_xarray.export")

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
#: How Zarr 3 calls blosc's 0, 1 and 2.
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
#: What returns the values that it was given, of any type.
_LOSSLESS = frozenset(
    {"shuffle", "fletcher32", "crc32", "adler32", "jenkins_lookup3"}
    | {"zlib", "gzip", "bz2", "lzma", "lz4", "zstd", "blosc", "szip"}
)


def asked_codecs(
    encoding: Mapping[str, Any], dtype: np.dtype[Any], *, shuffled: bool = True
) -> tuple[CodecConfig, ...]:
    """Return the codecs that an encoding asks for, in the order of encoding.

    Parameters
    ----------
    shuffled
        Whether the compressors of netCDF come with shuffling if nothing is said of it.

    Raises
    ------
    ValueError
        If one of them is not known, or a parameter is not possible.
    """
    name = _compression(encoding)
    if not _in_words_of_netcdf(encoding, name):
        return tuple(map(_config, _zarr_codecs(encoding)))
    if encoding.get("shuffle") is None and not shuffled:
        encoding = {**encoding, "shuffle": False}
    return _netcdf_codecs(encoding, name, dtype)


def inherited_codecs(
    encoding: Mapping[str, Any], array: ChunkedArray, profile: Profile
) -> tuple[CodecConfig, ...]:
    """Return the inherited codecs of an encoding that can be kept (see `kept_codecs`)."""
    return kept_codecs(_inherited(encoding, array), array, profile)


def kept_codecs(
    codecs: Iterable[Any], array: ChunkedArray, profile: Profile
) -> tuple[CodecConfig, ...]:
    """Return those codecs of the source that can be kept; the others are logged.

    Codecs that change values (scaling, rounding) are left out: the values have been through them,
    and others that took their place may not survive it.

    Parameters
    ----------
    array
        As it is to be, without codecs.
    """
    kept: list[CodecConfig] = []
    for codec in codecs:
        try:
            config = _adapted(_config(codec), array, profile)
            problem = _problem(config, array, profile)
        except ValueError as error:
            problem = str(error)
        if problem is None:
            kept.append(config)
        else:
            _skip(array, codec, problem)
    return tuple(kept)


def _skip(array: ChunkedArray, codec: Any, reason: object) -> None:
    _log.info("/%s: inherited codec %.80r is left out: %s", array.path, codec, reason)


def _inherited(encoding: Mapping[str, Any], array: ChunkedArray) -> Iterable[Any]:
    """Return the codecs of the source, of Zarr 2 or 3; None if it has none."""
    level = encoding.get("complevel")
    if isinstance(level, (int, np.integer)) and level < 0:
        encoding = {**encoding, "complevel": None}  # Zarr's libraries know such ones
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
    if name == "gzip" and (profile.spelling or profile.portable):  # the same but for a header
        config, name = {"id": "zlib", "level": config.get("level", 4)}, "zlib"
    if name == "shuffle":
        return {"id": "shuffle", "elementsize": shuffle_size(array)}
    if name == "szip":  # it fails on what it cannot make smaller
        config, name = {"id": "zlib", "level": 4}, "zlib"
    if name in ("zlib", "gzip", "zstd") and not _is_level(config.get("level", 0)):
        # -1 is zlib's default, and below that come the fast ones of zstd
        return {**config, "level": 4 if name != "zstd" else 1}
    if name == "delta":
        same = {np.dtype(config[key]) for key in ("dtype", "astype") if config.get(key)}
        if same != {array.dtype} or array.dtype.kind not in "iu":
            raise ValueError("it may change values")
    elif name not in _LOSSLESS:
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


def _is_level(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and bool(value >= 0)


def _in_words_of_netcdf(encoding: Mapping[str, Any], compression: str | None) -> bool:
    return bool(compression or encoding.get("shuffle") or encoding.get("fletcher32"))


def _netcdf_codecs(
    encoding: Mapping[str, Any], name: str | None, dtype: np.dtype[Any]
) -> tuple[CodecConfig, ...]:
    """Return shuffle, the compressor called `name` and the checksum, in netCDF-C's order."""
    shuffle = encoding.get("shuffle")
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
    """Return the name of the compressor that netCDF's keys ask for."""
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
    options = encoding.get("compression_opts")  # h5netcdf's: a level, or else of other codecs
    if level is None and isinstance(options, (int, np.integer)):
        level = options
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
        config = _of_zarr3(codec.to_dict())
    if config is None or not isinstance(config.get("id"), str):
        raise ValueError(f"{codec!r:.80} is no codec of Zarr 2; use those of numcodecs")
    config = dict(config)
    if config["id"] == "zstd":
        config.pop("checksum", None)  # netCDF-C knows levels only
    return config


def _of_zarr3(stated: Mapping[str, Any]) -> CodecConfig | None:
    """Return a codec of Zarr 3, given by its metadata, as one of Zarr 2; None if there is none."""
    name = str(stated.get("name")).removeprefix("numcodecs.")
    settings = dict(stated.get("configuration") or {})
    if name == "blosc":
        shuffle = str(settings.pop("shuffle", "shuffle"))
        settings.pop("typesize", None)
        settings["shuffle"] = _BLOSC_SHUFFLES.index(shuffle)
    return {"id": name, **settings} if name in _LOSSLESS else None
