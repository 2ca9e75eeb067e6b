"""Our data model as a netCDF-4 file, through the library that netCDF4-python brings."""

from __future__ import annotations

# paths are text, as everywhere
# ruff: noqa: PTH105, PTH108, PTH110
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from nczarr_fsspec.changes.create import partial_path
from nczarr_fsspec.errors import DatasetExistsError, FormatError, StoreError
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.source import StoredSource
from nczarr_xarray.export.stored import stored_as
from nczarr_xarray.model import Attribute, CodecConfig, Group, Variable
from nczarr_xarray.reader import Opened


def write_netcdf(opened: Opened, path: str, progress: Progress, *, overwrite: bool = False) -> None:
    """Copy an open dataset to a netCDF-4 file; what was there stays until that is complete.

    Raises
    ------
    ImportError
        If netCDF4 is not installed.
    DatasetExistsError
        If there is something and it must not be overwritten.
    FormatError
        If a variable cannot be read, or netCDF has no such type.
    StoreError
        If the file cannot be written.
    """
    try:
        import netCDF4
    except ImportError:
        raise ImportError(f"{path}: a netCDF file needs netCDF4: pip install netCDF4") from None
    if os.path.exists(path) and not overwrite:
        raise DatasetExistsError(path, "is there already; --overwrite replaces it")
    variables = [v for g in opened.hierarchy.root.walk() for v in g.variables.values()]
    progress.expect(len(variables))
    new = partial_path(os.path.realpath(path))
    try:
        with netCDF4.Dataset(new, "x", format="NETCDF4") as file:
            for group in opened.hierarchy.root.walk():
                _write_group(file, opened, group, progress)
        os.replace(new, path)
    except (OSError, RuntimeError) as error:  # netCDF4 raises both
        if isinstance(error, StoreError):
            raise
        raise StoreError(path, f"cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            os.unlink(new)


def _write_group(file: Any, opened: Opened, group: Group, progress: Progress) -> None:
    target = file if group.path == "/" else file.createGroup(group.path)
    for dimension in group.dimensions.values():
        target.createDimension(dimension.name, None if dimension.unlimited else dimension.size)
    _write_attributes(target, group.attributes.values())
    for variable in group.variables.values():
        if variable.error is not None:
            raise variable.error
        if variable.nc_type is None:
            raise FormatError(variable.path, f"is of type {variable.dtype}, which netCDF lacks")
        _write_variable(target, opened, variable)
        progress.advance()


def _write_attributes(target: Any, attributes: Iterable[Attribute]) -> None:
    for attribute in attributes:
        if attribute.name == "_FillValue":
            continue
        if attribute.type == "string":
            texts = list(attribute.value)
            target.setncattr_string(attribute.name, texts[0] if len(texts) == 1 else texts)
        elif attribute.type == "char":
            target.setncattr(attribute.name, str(attribute.value).encode())
        else:
            target.setncattr(attribute.name, attribute.value)


def _filters(codecs: Iterable[CodecConfig]) -> dict[str, Any]:
    """Options of `createVariable` for codecs; those that netCDF does not have are left out."""
    options: dict[str, Any] = {"shuffle": False}
    for config in codecs:
        match config["id"]:
            case "shuffle" | "fletcher32" as name:
                options[name] = True
            case "zlib" | "zstd" | "bz2" as name:
                options["compression"] = {"bz2": "bzip2"}.get(name, name)
                options["complevel"] = config["level"]
            case "blosc":
                options["compression"] = f"blosc_{config['cname'].replace('blosclz', 'lz')}"
                options["complevel"] = config["clevel"]
                options["blosc_shuffle"] = max(0, config["shuffle"])
            case "szip":
                options["compression"] = "szip"
                options["szip_coding"] = "nn" if config["mask"] & 32 else "ec"
                options["szip_pixels_per_block"] = config["pixels-per-block"]
    return options


def _write_variable(target: Any, opened: Opened, variable: Variable) -> None:
    names = tuple(d.name for d in variable.dimensions)
    text = variable.nc_type == "string"
    fill = variable.attributes.get("_FillValue")
    options: dict[str, Any] = {}
    stored = stored_as(opened, variable)
    if variable.shape and not text:
        options |= _filters(stored.codecs)
    if variable.shape and not stored.contiguous:
        options["chunksizes"] = tuple(
            c if d.unlimited or d.size == 0 else min(c, d.size)
            for c, d in zip(stored.chunk_shape, variable.dimensions, strict=True)
        )
    if fill is not None:
        value: Any = fill.value
        options["fill_value"] = value[0] if not isinstance(value, str) else value.encode()
    big = not text and stored.dtype.byteorder == ">"
    made = target.createVariable(
        variable.name,
        str if text else (stored.dtype if big else stored.dtype.newbyteorder("=")),
        names,
        endian="big" if big else "native",
        **options,
    )
    made.set_auto_maskandscale(False)
    made.set_auto_chartostring(False)
    _write_attributes(made, variable.attributes.values())
    source = StoredSource(opened.reader(variable), variable, stored.chunk_shape)
    if not variable.shape:
        made[...] = source.read(())[()] if not text else source.read(()).item()
        return
    for part in source.slabs(stored.chunk_shape):
        if math.prod(p.stop - p.start for p in part):
            made[part] = source.read(part)
