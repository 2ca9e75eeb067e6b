"""The table of codecs: all that is known of each of them is one row.

A new codec is a row here (and a module beside this one, if it needs code), or a row of another
package, found by its entry point. What needs to know something of codecs asks this module; no
other has a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from nczarr_xarray.codecs import compress, decompress, filters, hdf5, shuffle
from nczarr_xarray.codecs.codec import (
    Codec,
    Frame,
    HDF5Filter,
    Keyword,
    Size,
    Step,
    checked,
    compressor,
    with_level,
)
from nczarr_xarray.codecs.filters import filter_step, fletcher32
from nczarr_xarray.codecs.libhdf5 import SZIP
from nczarr_xarray.model import Array, CodecConfig
from nczarr_xarray.plugins import added

#: Entry points of this group are rows (`Codec`).
GROUP = "nczarr_xarray.codecs"

_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
#: How Zarr 3 calls blosc's 0, 1 and 2.
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
#: The level that zstd takes itself, as for 0.
_OF_ZSTD = 3
#: netCDF's words for its compressors.
_BLOSC_NAMES = {f"blosc_{name.removeprefix('blosc')}": name for name in _BLOSC_COMPRESSORS}


def _level(default: int) -> Callable[[tuple[int, ...]], dict[str, Any]]:
    """Return the level of a filter, which is the first of its parameters."""
    return lambda values: {"level": values[0] if values else default}


def _compression(
    name: str, levels: range, other: int = 4
) -> Callable[[CodecConfig], dict[str, Any]]:
    """Return arguments of `createVariable` for a compressor; `other` for a level not in netCDF."""

    def options(config: CodecConfig) -> dict[str, Any]:
        level = config.get("level", 4)
        return {"compression": name, "complevel": level if level in levels else other}

    return options


def _zstd_options(config: CodecConfig) -> dict[str, Any]:
    # 0 is the level that zstd takes itself; of netCDF4-python, no compression
    level = config.get("level", _OF_ZSTD) or _OF_ZSTD
    return _compression("zstd", range(1, 23), other=1)({"level": level})


def _flag(name: str) -> Callable[[CodecConfig], dict[str, Any]]:
    return lambda _: {name: True}


def _shuffle_settings(values: tuple[int, ...]) -> dict[str, Any]:
    (size,) = values
    if not size:
        raise ValueError
    return {"elementsize": size}


def _blosc_settings(values: tuple[int, ...]) -> dict[str, Any]:
    given = dict(enumerate(values))
    return {
        "cname": _BLOSC_COMPRESSORS[given.get(6, 0)],
        "clevel": given.get(4, 5),
        "shuffle": given.get(5, 1),
        "blocksize": 0,
    }


def _blosc_asked(name: str, encoding: Mapping[str, Any], level: int) -> CodecConfig:
    options = encoding["blosc"] if isinstance(encoding.get("blosc"), Mapping) else {}
    name = _BLOSC_NAMES.get(str(options.get("compressor", name)), "lz4")
    shuffled = encoding.get("blosc_shuffle", options.get("shuffle", 1))
    return {
        "id": "blosc",
        "cname": name,
        "clevel": checked("complevel", level, range(10)),
        "shuffle": checked("blosc_shuffle", int(shuffled), range(3)),
        "blocksize": 0,
    }


def _szip_settings(values: tuple[int, ...]) -> dict[str, Any]:
    mask, pixels = (*values, 0, 0)[:2]
    return {"mask": mask & filters.NEAREST or filters.ENTROPY, "pixels-per-block": pixels}


def _szip_asked(_: str, encoding: Mapping[str, Any], __: int) -> CodecConfig:
    options = encoding["szip"] if isinstance(encoding.get("szip"), Mapping) else {}
    coding = encoding.get("szip_coding", options.get("coding", "nn"))
    pixels = encoding.get("szip_pixels_per_block", options.get("pixels_per_block", 8))
    if coding not in ("nn", "ec") or pixels not in range(2, 33, 2):
        raise ValueError("szip: coding is 'nn' or 'ec', pixels_per_block even and at most 32")
    mask = filters.NEAREST if coding == "nn" else filters.ENTROPY
    return {"id": "szip", "mask": mask, "pixels-per-block": int(pixels)}


def _szip_told(config: CodecConfig) -> Any:
    if "mask" not in config:  # a filter that nothing here can undo
        return False
    mask = config["mask"] if isinstance(config["mask"], int) else 0
    coding = "nn" if mask & filters.NEAREST else "ec"
    return {"coding": coding, "pixels_per_block": config.get("pixels-per-block")}


def _szip_options(config: CodecConfig) -> dict[str, Any]:
    told = _szip_told({"mask": None, **config})
    pixels = told["pixels_per_block"]
    return {
        "compression": "szip",
        "szip_coding": told["coding"],
        "szip_pixels_per_block": pixels if pixels in range(2, 33, 2) else 8,
    }


def _blosc_options(config: CodecConfig) -> dict[str, Any]:
    """Return zlib for blosc, which as a filter of HDF5 fails on data that it cannot compress."""
    return {"compression": "zlib", "complevel": 4, "shuffle": config.get("shuffle", 1) != 0}


def _zarr3_gzip(config: CodecConfig, shuffled: bool) -> CodecConfig:
    level = int(config.get("level", 4))
    return _zarr3_shuffled("zlib", level) if shuffled else {"id": "gzip", "level": level}


def _zarr3_zstd(config: CodecConfig, shuffled: bool) -> CodecConfig:
    level = int(config.get("level", 4))
    if shuffled:  # of blosc, 0 is no compression
        return _zarr3_shuffled("zstd", level or _OF_ZSTD)
    return {"id": "zstd", "level": level, "checksum": False}


def _zarr3_shuffled(name: str, level: int) -> CodecConfig:
    return _zarr3_blosc({"cname": name, "clevel": min(level, 9)}, True)


def _zarr3_blosc(config: CodecConfig, _: bool) -> CodecConfig:
    shuffle = dict(enumerate(_BLOSC_SHUFFLES)).get(config.get("shuffle", 1), "shuffle")
    given = {"cname": config.get("cname", "lz4"), "clevel": config.get("clevel", 5)}
    return {"id": "blosc", **given, "shuffle": shuffle, "blocksize": 0}


def _values(values: tuple[int, ...]) -> dict[str, Any]:
    return {"values": list(values)}


def _none(_: tuple[int, ...]) -> dict[str, Any]:
    return {}


#: What this package knows. Of netCDF's compressors that are asked for, the last one counts.
TABLE: tuple[Codec, ...] = (
    Codec(
        id="shuffle",
        decode=shuffle.decode,
        encode=shuffle.encode,
        hdf5=HDF5Filter(2, _shuffle_settings),
        netcdf=Keyword(name="shuffle"),
        options=_flag("shuffle"),
        lossless=True,
        rate=4e9,
    ),
    Codec(
        id="fletcher32",
        decode=fletcher32,
        hdf5=HDF5Filter(3, _none),
        netcdf=Keyword(name="fletcher32"),
        options=_flag("fletcher32"),
        zarr3=lambda _, __: {"id": "crc32c"},
        lossless=True,
        rate=4e9,
    ),
    Codec(
        id="zlib",
        decode=compressor(decompress.inflate),
        encode=compress.of_elements(compress.deflate),
        hdf5=HDF5Filter(1, lambda values: {"level": values[0]}),
        netcdf=with_level("zlib", "zlib", range(10), shuffled=True, told_below=6),
        options=_compression("zlib", range(10)),
        compressor=True,
        zarr3=_zarr3_gzip,
        lossless=True,
        portable=True,
        frame=Frame(3, most=1 << 15),
        rate=680e6,
    ),
    Codec(
        id="szip",
        decode=filters.decode,
        encode=filters.szip_encoder,
        hdf5=HDF5Filter(SZIP, _szip_settings, decodes=False),
        netcdf=Keyword(
            name="szip",
            config=_szip_asked,
            told=_szip_told,
            needs=("mask", "pixels-per-block"),
            keys=("szip_coding", "szip_pixels_per_block"),
        ),
        options=_szip_options,
        lossless=True,
        needs_libhdf5=True,
    ),
    Codec(
        id="zstd",
        decode=compressor(decompress.unzstd),
        hdf5=HDF5Filter(32015, _level(3)),
        netcdf=with_level("zstd", "zstd", range(23), shuffled=True, below=1),
        options=_zstd_options,
        compressor=True,
        zarr3=_zarr3_zstd,
        lossless=True,
        frame=Frame(4, most=1 << 17),
        decode_into=decompress.unzstd_into,
        rate=3.3e9,
    ),
    Codec(
        id="bz2",
        decode=compressor(decompress.bunzip2),
        hdf5=HDF5Filter(307, _level(9)),
        netcdf=with_level("bz2", "bzip2", range(1, 10), shuffled=True),
        options=_compression("bzip2", range(1, 10)),
        compressor=True,
        lossless=True,
        rate=55e6,
    ),
    Codec(
        id="blosc",
        decode=compressor(decompress.unblosc),
        encode=compress.of_elements(compress.blosc),
        hdf5=HDF5Filter(32001, _blosc_settings),
        netcdf=Keyword(
            name="blosc",
            config=_blosc_asked,
            level="clevel",
            also=tuple(_BLOSC_NAMES),
            keys=("blosc_shuffle",),
        ),
        options=_blosc_options,
        compressor=True,
        zarr3=_zarr3_blosc,
        lossless=True,
        portable=True,
        decode_into=decompress.unblosc_into,
        rate=4e9,
    ),
    Codec(
        id="gzip",
        decode=compressor(decompress.inflate),
        encode=compress.of_elements(compress.gzip),
        options=_compression("zlib", range(10)),
        compressor=True,
        zarr3=_zarr3_gzip,
        lossless=True,
        rate=680e6,
    ),
    Codec(
        id="lzma",
        decode=compressor(decompress.unlzma),
        compressor=True,
        lossless=True,
        rate=46e6,
    ),
    Codec(id="lz4", decode=compressor(decompress.unlz4), compressor=True, lossless=True, rate=8e9),
    Codec(id="crc32", lossless=True),
    Codec(id="adler32", lossless=True),
    Codec(id="jenkins_lookup3", lossless=True),
    # of Zarr 3; copies to Zarr 2 go without it, so that it does not count as what they can keep
    Codec(id="crc32c", rate=9e9),
    Codec(id="vlen-utf8"),
    # of HDF5 only
    Codec(id="hdf5-nbit", decode=hdf5.nbit_step, hdf5=HDF5Filter(5, _values), zarr=False),
    Codec(id="hdf5-scaleoffset", decode=hdf5.unscale, hdf5=HDF5Filter(6, _values), zarr=False),
    Codec(id="hdf5-lzf", decode=hdf5.unlzf, hdf5=HDF5Filter(32000, _none), zarr=False),
    Codec(id="hdf5-lz4", decode=hdf5.unlz4, hdf5=HDF5Filter(32004, _none), zarr=False),
    # BitGroom and granular bit rounding: what they took away is gone
    Codec(id="hdf5-identity", decode=hdf5.identity, hdf5=HDF5Filter(32022, _none), zarr=False),
    Codec(id="hdf5-identity", decode=hdf5.identity, hdf5=HDF5Filter(32023, _none), zarr=False),
    Codec(id="hdf5", decode=hdf5.by_libhdf5, zarr=False, needs_libhdf5=True),
    Codec(id="hdf5-missing", decode=hdf5.refuse, zarr=False),
    Codec(id="hdf5-wrong", decode=hdf5.refuse, zarr=False),
)
BY_ID = {row.id: row for row in TABLE}
_BY_NUMBER = {row.hdf5.number: row for row in TABLE if row.hdf5 is not None}
#: What is known of a codec that is in no table: numcodecs may have it.
_NOTHING = Codec(id="")


@cache
def _added() -> tuple[Codec, ...]:
    """Find the rows of other packages, when something is asked that is not in the table."""
    return added(GROUP, Codec)


def codec(id_: str) -> Codec:
    """Return what is known of a codec by its id: nothing, if it is in no table."""
    row = BY_ID.get(id_)
    return row or next((row for row in _added() if row.id == id_), _NOTHING)


def codec_of_filter(number: int) -> Codec | None:
    """Return the codec that is a filter of HDF5; None if there is none."""
    row = _BY_NUMBER.get(number)
    if row is not None:
        return row
    return next((row for row in _added() if row.hdf5 and row.hdf5.number == number), None)


def keywords() -> dict[str, Keyword]:
    """Return netCDF's words for each codec that has some, by its id."""
    return {row.id: row.netcdf for row in (*TABLE, *_added()) if row.netcdf}


def compression(name: str) -> Keyword | None:
    """Return the words of what netCDF's ``compression`` means by `name`; None for nothing."""
    return next((words for words in _compressors() if name in (words.name, *words.also)), None)


def compressions() -> list[str]:
    """Return all values of netCDF's ``compression``."""
    return [name for words in _compressors() for name in (words.name, *words.also)]


def asked(encoding: Mapping[str, Any]) -> str | None:
    """Return the name of the compressor that the flags of an `encoding` ask for."""
    names = [words.name for words in _compressors() if encoding.get(words.name)]
    return names[-1] if names else None


def _compressors() -> list[Keyword]:
    return [words for words in keywords().values() if words.config]


def encoding_keys() -> frozenset[str]:
    """Return the keys of `encoding` that are about codecs, in the words of netCDF."""
    keys = (key for words in keywords().values() for key in (words.name, *words.keys))
    return frozenset({"compression", "compression_opts", "complevel", *keys})


def step_of(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Make the step that undoes a codec and returns `size`; say what size it takes."""
    row = codec(config["id"])
    if row.decode is not None and (row.zarr or array.codec_words == "hdf5"):
        return row.decode(config, array, size)
    return filter_step(config, array, size)


def as_zarr(config: CodecConfig) -> CodecConfig:
    """Return a codec as Zarr spells it, even if it cannot be undone; unchanged if Zarr has none."""
    row = codec_of_filter(config["filter"]) if "filter" in config else None
    if row is None or row.hdf5 is None or not row.zarr:
        return config
    values = config.get("values")
    return {"id": row.id, **({} if values is None else row.hdf5.settings(tuple(values)))}


def same_in_zarr2(config: CodecConfig) -> CodecConfig | None:
    """Return a codec of Zarr 3 as Zarr 2 spells it; None if it has none that loses nothing."""
    config = {**config, "id": config["id"].removeprefix("numcodecs.")}
    if config["id"] == "blosc":
        config.pop("typesize", None)
        shuffle = config.get("shuffle", "shuffle")
        if shuffle in _BLOSC_SHUFFLES:
            config["shuffle"] = _BLOSC_SHUFFLES.index(shuffle)
    return config if codec(config["id"]).lossless else None


def of_zarr3(codecs: Iterable[CodecConfig]) -> tuple[CodecConfig, ...]:
    """Return what Zarr 2 has of a pipeline of Zarr 3; of shards, of the chunks inside.

    netCDF has neither gzip nor crc32c. They become what becomes them the other way round: zlib,
    which differs in the header only, and fletcher32.
    """
    found: list[CodecConfig | None] = []
    for config in codecs:
        if config["id"] == "sharding_indexed":
            return of_zarr3(
                {"id": one["name"], **(one.get("configuration") or {})} for one in config["codecs"]
            )
        if config["id"] == "gzip":
            found.append({**config, "id": "zlib"})
        elif config["id"] == "crc32c":
            found.append({"id": "fletcher32"})
        else:
            found.append(same_in_zarr2(config))
    return tuple(config for config in found if config is not None)


def need_libhdf5(codecs: Iterable[CodecConfig]) -> bool:
    """Tell whether libhdf5 is used to decode, and to prepare that: see `libhdf5.only_user`."""
    return any(codec(config["id"]).needs_libhdf5 for config in codecs)


def is_level(value: Any) -> bool:
    """Tell whether a level is one that netCDF knows."""
    return isinstance(value, (int, np.integer)) and bool(value >= 0)


#: The words of netCDF for codecs; those of other packages are looked up where one is met.
WORDS = {row.id: row.netcdf for row in TABLE if row.netcdf is not None}
#: What is said of a variable without any.
_NOT_APPLIED = {words.name: False for words in WORDS.values()}


def netcdf_filters(codecs: tuple[CodecConfig, ...]) -> dict[str, Any]:
    """Return netCDF's words for codecs: which are applied, with their parameters and the level."""
    by_id = {config["id"]: config for config in map(as_zarr, codecs)}
    filters: dict[str, Any] = {"complevel": 0, **_NOT_APPLIED}
    added = {id_: codec(id_).netcdf for id_ in by_id if id_ not in WORDS}  # by another package
    for id_, words in (*WORDS.items(), *added.items()):
        config = by_id.get(id_)
        if config is None or words is None:
            continue
        filters[words.name] = words.told(config)
        if words.level:
            level = config.get(words.level)
            level = level if isinstance(level, int) else 0  # to show; the codec refuses others
            # netCDF has none below 0: -1 is zlib's default, the others are fast ones of zstd
            filters["complevel"] = level if level >= 0 else words.told_below
    return filters
