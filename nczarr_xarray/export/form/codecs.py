"""Codecs from xarray's ``encoding``: those that are asked for, and those that data came with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.codecs import registry
from nczarr_xarray.codecs.shuffle import netcdf_size
from nczarr_xarray.formats.nczarr.limits import codec_problems
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import ChunkedArray, CodecConfig

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
    for codec in codecs:
        try:
            config = _adapted(_config(codec), array, profile)
            problem = _problem(config, array, profile)
        except (ValueError, TypeError) as error:
            problem = str(error)
        if problem is None:
            kept.append(config)
        else:
            _skip(array, codec, problem)
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
