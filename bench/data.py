"""The data that benchmarks read: a field as a Zarr tree and as an equivalent netCDF-4 file.

The tree is written by zarr-python and the file by netCDF-C, with the same chunks and codecs.
Data stay in the page cache: this measures us, not a disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

DTYPE = np.dtype("<f4")


@dataclass(frozen=True)
class Codec:
    """What compresses chunks, as xarray's encoding for either format says it."""

    zarr: dict[str, Any]
    netcdf: dict[str, Any]

    @property
    def shuffled(self) -> bool:
        """Whether there is a filter, which tensorstore cannot undo."""
        return self.zarr["filters"] is not None


def shuffled_zlib(level: int) -> dict[str, Any]:
    import numcodecs

    return {"compressors": numcodecs.Zlib(level), "filters": [numcodecs.Shuffle(DTYPE.itemsize)]}


@cache
def codecs() -> dict[str, Codec]:
    """By name; the parameters are the same in both formats."""
    import numcodecs

    def plain(compressor: Any, **netcdf: Any) -> Codec:
        return Codec({"compressors": compressor, "filters": None}, netcdf)

    zlib = {"zlib": True, "complevel": 1}
    blosc = {"compression": "blosc_lz4", "complevel": 5, "blosc_shuffle": 1}
    return {
        "none": plain(None),
        "shuffled zlib": Codec(shuffled_zlib(1), {**zlib, "shuffle": True}),
        "zlib": plain(numcodecs.Zlib(1), **zlib, shuffle=False),
        "zstd": plain(numcodecs.Zstd(3), compression="zstd", complevel=3, shuffle=False),
        "blosc lz4": plain(numcodecs.Blosc("lz4", 5, 1), **blosc),
    }


def field(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Smooth with noise in the last digits, like most geophysical fields."""
    axes = [
        np.linspace(0, 6, n, dtype="f4").reshape([-1 if i == k else 1 for i in range(len(shape))])
        for k, n in enumerate(shape)
    ]
    values = np.random.default_rng(0).standard_normal(shape, dtype="f4")
    values *= np.float32(0.01)
    values += 280 + 20 * sum(np.sin(a + k) for k, a in enumerate(axes))
    return np.round(values, 3, out=values)


@dataclass(frozen=True, slots=True)
class Array:
    """A variable "v" of float32; one chunk of the whole array is contiguous in a netCDF-4 file.

    Attributes
    ----------
    every
        One chunk in so many is stored; the others are fill values, 0.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: str = "shuffled zlib"
    every: int = 1

    @property
    def dims(self) -> tuple[str, ...]:
        return ("t", "y", "x")[-len(self.shape) :]

    @property
    def contiguous(self) -> bool:
        return self.chunks == self.shape and self.codec == "none"

    def write(self, folder: Path) -> Stored:
        """Write both formats, and let the disk have them before anything is measured."""
        ds = xr.Dataset({"v": (self.dims, self.values())})
        codec = codecs()[self.codec]
        stored = Stored(self, folder / "v.zarr", folder / "v.nc")
        fill = {"_FillValue": 0} if self.every > 1 else {}
        encoding = {"v": {"chunks": self.chunks, **fill, **codec.zarr}}
        ds.to_zarr(stored.tree, zarr_format=2, encoding=encoding, consolidated=False)
        layout = {"contiguous": True} if self.contiguous else {"chunksizes": self.chunks}
        encoding = {"v": {**layout, "_FillValue": None, **codec.netcdf}}
        if self.every > 1:
            self._write_file(stored.file, ds["v"].values, {**layout, **codec.netcdf})
        else:
            ds.to_netcdf(stored.file, engine="netcdf4", encoding=encoding)
        os.sync()
        return stored

    def values(self) -> np.ndarray[Any, Any]:
        values = field(self.shape)
        if self.every > 1:
            numbers = [np.arange(n) // c for n, c in zip(self.shape, self.chunks, strict=True)]
            values[sum(np.ix_(*numbers)) % self.every != 0] = 0
        return values

    def _write_file(self, path: Path, values: np.ndarray[Any, Any], layout: dict[str, Any]) -> None:
        """Write the chunks that are not fill values, which xarray would not leave out."""
        with netCDF4.Dataset(path, "w") as file:
            for name, length in zip(self.dims, self.shape, strict=True):
                file.createDimension(name, length)
            v = file.createVariable("v", DTYPE, self.dims, fill_value=0, **layout)
            v.set_auto_maskandscale(False)
            grid = [-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True)]
            for position in np.ndindex(*grid):
                if sum(position) % self.every == 0:
                    pairs = zip(position, self.chunks, strict=True)
                    where = tuple(slice(i * c, (i + 1) * c) for i, c in pairs)
                    v[where] = values[where]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an array is."""

    array: Array
    tree: Path
    file: Path

    def chunk(self, position: tuple[int, ...]) -> str:
        """The file of one chunk."""
        return f"{self.tree}/v/{'.'.join(map(str, position))}"
