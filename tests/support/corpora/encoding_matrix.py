"""Sources whose encodings are inherited, what is done to them, and all writers.

`SOURCES` make files and stores of one dataset with libraries of other people, and say which engines
open them. `OPERATIONS` are what users do before they write. `OURS` and `THEIRS` write, and read
back. tests/xarray/export/test_export_matrix.py goes through all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import xarray as xr
import zarr.codecs

from nczarr_xarray import to_nczarr

SIZES = {"time": 10, "y": 12, "x": 16}
CHUNKS = {"time": 4, "y": 6, "x": 16}


def dataset() -> xr.Dataset:
    """Numbers of several types, packed ones, times and text."""
    values = np.arange(1920).reshape(tuple(SIZES.values())) // 240 / 2 - 2
    holes = np.where(np.arange(1920).reshape(values.shape) % 11 == 0, np.nan, values)
    days = np.datetime64("2001-02-03", "ns") + np.arange(10) * np.timedelta64(1, "D")
    return xr.Dataset(
        {
            "field": (("time", "y", "x"), holes.astype("f4"), {"units": "K"}),
            "packed": (("time", "y", "x"), holes),
            "count": (("y", "x"), np.arange(192, dtype="i4").reshape(12, 16) // 16),
            "text": ("x", np.array([f"text {'é' * i}" for i in range(16)])),
            "chars": ("y", np.array([b"ab", b"cde", b"", b"f", b"gh", b"i"] * 2)),
            "scalar": ((), np.float64(2.5)),
        },
        coords={"time": days, "x": np.arange(16.0)},
        attrs={"title": "matrix"},
    )


PACKED = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -9999}
TIME = {"units": "days since 2000-01-01", "dtype": "i4"}


def _encoding(storage: Mapping[str, Any], chunks: str) -> dict[str, Any]:
    """`storage` for all variables of numbers that are not scalars."""
    found: dict[str, Any] = {}
    for name, variable in dataset().variables.items():
        if name in ("field", "packed", "count"):
            found[str(name)] = {**storage, chunks: tuple(CHUNKS[str(d)] for d in variable.dims)}
    found["packed"] |= PACKED
    return found | {"time": dict(TIME)}


def hdf5(**storage: Any) -> Callable[[Path], Path]:
    """A netCDF-4 file by netCDF4-python, for keys of `createVariable`."""

    def write(folder: Path) -> Path:
        path = folder / "x.nc"
        plain = dataset().drop_encoding()
        for name, encoding in _encoding({}, "chunksizes").items():
            plain[name].encoding = {k: v for k, v in encoding.items() if k != "chunksizes"}
        encoded, _ = xr.conventions.cf_encoder(plain.variables, plain.attrs)
        with netCDF4.Dataset(path, "w") as file:
            for name, size in {**SIZES, "letters": 3}.items():
                file.createDimension(name, None if name == "time" else size)
            for name, variable in encoded.items():
                dims, dtype = variable.dims, variable.dtype
                options: dict[str, Any] = {}
                values = variable.values
                if name in ("field", "packed", "count"):
                    options = dict(storage)
                    if not options.get("contiguous"):
                        options["chunksizes"] = [CHUNKS[d] for d in dims]
                    elif "time" in dims:
                        del options["contiguous"]
                if name == "chars":
                    dims, dtype = (*dims, "letters"), "S1"
                    values = netCDF4.stringtochar(values)
                made = file.createVariable(
                    name,
                    str if name == "text" else dtype,
                    dims,
                    fill_value=variable.attrs.get("_FillValue"),
                    **options,
                )
                made.set_auto_maskandscale(False)
                made.setncatts({k: v for k, v in variable.attrs.items() if k != "_FillValue"})
                made[...] = values.astype(object) if name == "text" else values
        return path

    return write


def classic(folder: Path) -> Path:
    path = folder / "x.nc"
    encoding: Any = {"packed": PACKED, "time": TIME}
    ds = dataset()
    ds.to_netcdf(
        path, engine="netcdf4", format="NETCDF3_64BIT", encoding=encoding, unlimited_dims=["time"]
    )
    return path


def zarr2(**storage: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        encoding = _encoding(storage, "chunks")
        filters = encoding["packed"].pop("filters", None)  # they are for floats
        if filters and filters[0].codec_id in ("shuffle", "delta"):
            encoding["packed"]["filters"] = [numcodecs.Shuffle(2)]
        if filters and filters[0].codec_id != "shuffle":
            encoding["count"].pop("filters")
        path = folder / "x.zarr"
        dataset().to_zarr(path, zarr_format=2, encoding=encoding, consolidated=False)
        return path

    return write


def zarr3(**storage: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "x.zarr"
        encoding = _encoding(storage, "chunks")
        if "shards" in storage:
            encoding["count"]["shards"] = storage["shards"][1:]
        dataset().to_zarr(path, zarr_format=3, encoding=encoding, consolidated=False)
        return path

    return write


def nczarr(compat: str = "4.9.3", **storage: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "x.nczarr"
        options: dict[str, Any] = {} if compat != "4.9.3" else {"unlimited_dims": ["time"]}
        encoding = _encoding(storage, "chunksizes") | {"chars": {"char_dim_name": "letters"}}
        to_nczarr(dataset(), path, encoding=encoding, compat=compat, **options)
        return path

    return write


def kerchunk(folder: Path) -> Path:
    from kerchunk.hdf import SingleHdf5ToZarr

    path = folder / "refs.json"
    source = hdf5(zlib=True)(folder)
    with xr.open_dataset(source, engine="netcdf4") as ds:  # it cannot do text of any length
        ds = ds.drop_vars(["text", "chars"]).load()
    ds.to_netcdf(folder / "y.nc", engine="netcdf4")
    path.write_text(json.dumps(SingleHdf5ToZarr(str(folder / "y.nc")).translate()))
    return path


def refs(folder: Path) -> Path:
    """References to the chunks of a file, by our own command."""
    from nczarr_xarray.cli.main import main

    path = folder / "refs.json"
    assert main(["refs", str(hdf5(zlib=True)(folder)), str(path)]) == 0
    return path


_HDF5 = ("nczarr", "netcdf4", "h5netcdf")
_ZARR = ("nczarr", "zarr")
#: name -> who makes it, and engines that open it.
SOURCES: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "hdf5 zlib": (hdf5(zlib=True, complevel=3, fletcher32=True), _HDF5),
    "hdf5 zstd": (hdf5(compression="zstd", complevel=5), ("nczarr", "netcdf4")),
    "hdf5 bzip2": (hdf5(compression="bzip2"), ("nczarr", "netcdf4")),
    "hdf5 blosc": (hdf5(compression="blosc_lz4"), ("nczarr", "netcdf4")),
    "hdf5 szip": (hdf5(compression="szip", szip_pixels_per_block=16), _HDF5),
    "hdf5 contiguous": (hdf5(contiguous=True), _HDF5),
    "hdf5 big": (hdf5(endian="big", zlib=True), _HDF5),
    "classic": (classic, ("nczarr", "netcdf4", "scipy")),
    "nczarr zlib": (nczarr(zlib=True, complevel=7, shuffle=True), ("nczarr",)),
    "nczarr blosc": (nczarr(compression="blosc_lz4"), ("nczarr",)),
    "nczarr szip": (nczarr(szip=True, fletcher32=True), ("nczarr",)),
    "nczarr zstd": (nczarr(zstd=True), ("nczarr",)),
    "nczarr bzip2": (nczarr(bzip2=True), ("nczarr",)),
    "zarr2 default": (zarr2(), _ZARR),
    "zarr2 blosc": (zarr2(compressors=numcodecs.Blosc("zstd", 3, 2)), _ZARR),
    "zarr2 blosc auto": (zarr2(compressors=numcodecs.Blosc("lz4", 5, -1)), _ZARR),
    "zarr2 gzip": (zarr2(compressors=numcodecs.GZip(3)), _ZARR),
    "zarr2 lz4": (zarr2(compressors=numcodecs.LZ4()), _ZARR),
    "zarr2 lzma": (zarr2(compressors=numcodecs.LZMA()), _ZARR),
    "zarr2 zstd": (zarr2(compressors=numcodecs.Zstd(-3)), _ZARR),
    "zarr2 zlib": (zarr2(compressors=numcodecs.Zlib(-1)), _ZARR),
    "zarr2 shuffle": (
        zarr2(filters=[numcodecs.Shuffle(4)], compressors=numcodecs.Zlib(2)),
        _ZARR,
    ),
    "zarr2 delta": (zarr2(filters=[numcodecs.Delta("<f4")], compressors=None), _ZARR),
    "zarr2 scaled": (
        zarr2(filters=[numcodecs.FixedScaleOffset(0, 2, "<f4", "<f4")], compressors=None),
        _ZARR,
    ),
    "zarr2 quantize": (zarr2(filters=[numcodecs.Quantize(1, "<f4")]), _ZARR),
    "zarr3 default": (zarr3(), _ZARR),
    "zarr3 blosc": (zarr3(compressors=zarr.codecs.BloscCodec(cname="lz4")), _ZARR),
    "zarr3 gzip": (zarr3(compressors=zarr.codecs.GzipCodec(level=4)), _ZARR),
    "zarr3 plain": (zarr3(compressors=None), _ZARR),
    "zarr3 shards": (zarr3(shards=(8, 12, 16)), _ZARR),
    "kerchunk": (kerchunk, ("kerchunk",)),
    "refs": (refs, ("kerchunk",)),
}


def opened(path: Path, engine: str, **options: Any) -> xr.Dataset:
    if engine == "zarr":
        options["consolidated"] = False
    return xr.open_dataset(str(path), engine=engine, **options)


OPERATIONS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "none": lambda ds: ds,
    "transpose": lambda ds: ds.transpose(),
    "isel": lambda ds: ds.isel(time=slice(3, 9), y=slice(1, None)),
    "one": lambda ds: ds.isel(time=0, y=0),
    "sel": lambda ds: ds.sel(x=[1.0, 5.0, 6.0]),
    "nothing": lambda ds: ds.isel(x=slice(0, 0)),
    "step": lambda ds: ds.isel(time=slice(None, None, 3)),
    "concat": lambda ds: xr.concat(
        [ds, ds.assign_coords(time=ds.time + np.timedelta64(10, "D"))],
        "time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
    ),
    "stacked": lambda ds: xr.concat(
        [ds, ds], "member", data_vars="all", coords="minimal", compat="override"
    ),
    "coarsen": lambda ds: ds[["field", "packed"]].coarsen(time=4, boundary="pad").max(),
    "rolling": lambda ds: ds[["field", "packed"]].rolling(time=3).max(),
    "expand": lambda ds: ds.expand_dims("member"),
    "names": lambda ds: ds.rename(time="t", y="row"),
    "arithmetic": lambda ds: ds.assign(field=ds["field"] + 1),
}
#: These concern dask's blocks only.
BLOCKS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "chunk": lambda ds: ds.chunk(time=1),
    "rechunk": lambda ds: ds.chunk(time=3, y=7, x=-1),
    "uneven": lambda ds: ds.chunk(time=(2, 5, 3), y=(1, 11)),
}


def _to_nczarr(**options: Any) -> Callable[[xr.Dataset, Path], xr.Dataset]:
    def write(ds: xr.Dataset, folder: Path) -> xr.Dataset:
        mode = options.get("how", "nczarr")
        rest = {k: v for k, v in options.items() if k != "how"}
        to_nczarr(ds, f"file://{folder}/y#mode={mode}", **rest)
        return xr.open_dataset(folder / "y", engine="nczarr")

    return write


def _to_netcdf(engine: Any) -> Callable[[xr.Dataset, Path], xr.Dataset]:
    def write(ds: xr.Dataset, folder: Path) -> xr.Dataset:
        # Into classic files scipy puts unlimited dimensions first only, and it spoils those that
        # have scalars and records: with what any engine says of unlimited dimensions.
        unlimited: Any = [] if engine == "scipy" else None
        ds.to_netcdf(folder / "y.nc", engine=engine, unlimited_dims=unlimited)
        return xr.open_dataset(folder / "y.nc", engine=engine)

    return write


def _to_zarr(zarr_format: Any) -> Callable[[xr.Dataset, Path], xr.Dataset]:
    def write(ds: xr.Dataset, folder: Path) -> xr.Dataset:
        ds.to_zarr(folder / "y.zarr", zarr_format=zarr_format, consolidated=False)
        return xr.open_dataset(folder / "y.zarr", engine="zarr", consolidated=False)

    return write


OURS: dict[str, Callable[[xr.Dataset, Path], xr.Dataset]] = {
    "to_nczarr": _to_nczarr(),
    "to_nczarr aligned": _to_nczarr(align_chunks=True),
    "to_nczarr 4.9.2": _to_nczarr(compat="4.9.2"),
    "to_nczarr zarr": _to_nczarr(how="zarr"),
}
THEIRS: dict[str, Callable[[xr.Dataset, Path], xr.Dataset]] = {
    "to_netcdf netcdf4": _to_netcdf("netcdf4"),
    "to_netcdf h5netcdf": _to_netcdf("h5netcdf"),
    "to_netcdf scipy": _to_netcdf("scipy"),
    "to_zarr 2": _to_zarr(2),
    "to_zarr 3": _to_zarr(3),
}
