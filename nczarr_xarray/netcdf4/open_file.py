"""An open dataset, as all its groups share it: what it is read from, or written by."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import NCZarrError, URLError
from nczarr_xarray.codecs.registry import netcdf_filters
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import ChunkedArray
from nczarr_xarray.model import Variable as StoredVariable
from nczarr_xarray.netcdf4.attributes import ReadOnlyError
from nczarr_xarray.netcdf4.dimension import Dimension, lengths_of
from nczarr_xarray.netcdf4.indexing import Index
from nczarr_xarray.netcdf4.variable import Variable

if TYPE_CHECKING:
    from nczarr_xarray.dataset.variable import VariableReader
    from nczarr_xarray.netcdf4.dataset import Dataset
    from nczarr_xarray.netcdf4.writing import Writer

#: netCDF4-python's names of the formats of files.
_CLASSIC = {
    "CDF-1": "NETCDF3_CLASSIC",
    "CDF-2": "NETCDF3_64BIT_OFFSET",
    "CDF-5": "NETCDF3_64BIT_DATA",
}
#: What `Dataset` passes on to the opening.
_OPTIONS = frozenset(
    {
        "allow",
        "anonymous_dimension_prefix",
        "consolidated",
        "index_cache",
        "memory_limit",
        "replace",
        "storage_options",
        "use_zarr_fill_value_as_mask",
    }
)


def _disk_format(generation: str) -> str:
    if generation in _CLASSIC:
        return "NETCDF3"
    return "HDF5" if generation == "hdf5" else "NCZARR"


class OpenFile:
    """What all groups of an open dataset share: the store, the format, the dimensions by path."""

    def __init__(
        self, target: Any, name: Any, mode: str, kind: str, options: Mapping[str, Any]
    ) -> None:
        for option in options:
            if option not in _OPTIONS:
                raise TypeError(f"Dataset takes no argument {option!r}")
        self.target = target
        self.options = dict(options)
        named = isinstance(name, (str, os.PathLike))
        self.path = os.fspath(name) if named else f"<{type(name).__name__}>"
        self.writer: Writer | None = None
        self.closed = False
        self.fills = True
        self.dimensions: dict[str, Dimension] = {}
        self.data_model, self.disk_format = "NETCDF4", "NCZARR"
        self.dataset: Dataset | None = None
        if mode not in ("r", "rs"):
            from nczarr_xarray.netcdf4.writing import Writer

            if mode not in ("w", "x", "a", "r+", "ws", "as"):
                raise ValueError(f"mode must be 'w', 'x', 'r', 'a' or 'r+', got '{mode}'")
            limit = self.options.pop("memory_limit", None)
            if limit is not None:
                self.options["memory"] = limit
            self.writer = Writer(
                target,
                "a" if mode == "r+" else mode[0],
                pure={"ZARR": True, "NCZARR": False}.get(kind),
                **self.options,
            )
            self.writer.save = self.sync
            self.root = self.writer.root
            if mode[0] in "wx" and kind == "NETCDF4_CLASSIC":
                self.data_model = kind
            return
        opened = self.opened = open_with(target, OpenOptions(**options))
        self.root = opened.hierarchy.root
        generation = opened.hierarchy.generation
        strict = "_CLASSIC" if opened.hierarchy.classic_model else ""
        self.data_model = _CLASSIC.get(generation, f"NETCDF4{strict}")
        self.disk_format = _disk_format(generation)

    def elements(self, variable: Any, dimensions: tuple[Dimension, ...]) -> Any:
        """Return where the elements of a stored variable are."""
        writer = self.writer
        if writer is None:
            return StoredElements(self.opened, variable)
        from nczarr_xarray.netcdf4.growing import GrowingElements

        assert writer.opened is not None
        if variable.error is not None:
            raise variable.error
        if not isinstance(variable.array, ChunkedArray) or variable.nc_type is None:
            reason = f"is of a type that netCDF lacks ({variable.dtype}): nothing here is changed"
            raise URLError(variable.path, reason)
        reader = writer.opened.reader(variable).exactly()
        made = GrowingElements(writer, variable.array, lengths_of(dimensions), reader)
        writer.elements.append(made)
        return made

    def check(self) -> None:
        """Raise if what is there would change by being written again as it is."""
        if self.writer is not None and self.dataset is not None:
            from nczarr_xarray.netcdf4.creating import model_of

            self.writer.check(model_of(self.dataset, self.writer.profile))

    def cdl(self, *, coordinates: bool, data: bool) -> str:
        """Return the dataset as CDL; what was written is committed before."""
        self.sync()
        opened = self.opened if self.writer is None else self.writer.opened
        assert opened is not None
        return _cdl(opened, self.path, coordinates=coordinates, data=data)

    def sync(self) -> None:
        """Commit what was written."""
        if self.writer is not None and self.dataset is not None:
            from nczarr_xarray.netcdf4.creating import model_of

            self.writer.commit(model_of(self.dataset, self.writer.profile))

    def close(self, *, save: bool) -> None:
        """Release the dataset; `save` commits what was written.

        If that is refused, the dataset stays open: what is refused can be changed.
        """
        if self.closed:
            return
        if save:
            self.sync()
        self.closed = True
        if self.writer is not None:
            self.writer.abort()
        else:
            self.opened.close()

    def load(self, variables: Mapping[str, Variable]) -> dict[str, Any]:
        """Read all of several variables, at the same time if they are remote."""
        if self.writer is not None:
            return {name: one[...] for name, one in variables.items()}
        keys = {name: (slice(None),) * one.ndim for name, one in variables.items()}
        wanted: list[tuple[StoredVariable, None]] = []
        for one in variables.values():
            elements = one._elements  # noqa: SLF001 - both are parts of one dataset
            assert isinstance(elements, StoredElements)
            wanted.append((elements.variable, None))
        loaded = {}
        for name, data in zip(variables, self.opened.read_many(wanted), strict=True):
            if isinstance(data, NCZarrError):
                raise data
            loaded[name] = variables[name]._decoded(data, keys[name])  # noqa: SLF001
        return loaded


class StoredElements:
    """Reads stored elements of one variable; safe in threads."""

    def __init__(self, opened: Opened, variable: StoredVariable) -> None:
        self.classic = opened.hierarchy.generation.startswith("CDF-")
        self.opened = opened
        self.variable = variable
        self._reader: VariableReader | None = None

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The lengths of chunks; None where elements are one block."""
        array = self.variable.array
        return array.chunk_shape if array is not None and array.is_chunked else None

    @property
    def filled(self) -> bool:
        """Whether elements that were not written read as a fill value."""
        array = self.variable.array
        return array is None or self.classic or array.fill is not None

    def read(self, key: tuple[Index, ...]) -> np.ndarray:
        """Return an orthogonal selection; dimensions that integers index are left out."""
        if self._reader is None:
            self._reader = self.opened.reader(self.variable)
        return self._reader.read(key)

    def write(self, key: tuple[Index, ...], data: np.ndarray) -> None:
        """Raise `ReadOnlyError`."""
        raise ReadOnlyError(f"NetCDF: Write to read only: {self.variable.path}")

    def filters(self) -> dict[str, Any]:
        """Return netCDF's words for the codecs."""
        array = self.variable.array
        return netcdf_filters(() if array is None else array.codecs)


def _cdl(opened: Opened, path: str, *, coordinates: bool, data: bool) -> str:
    """Return an open dataset as CDL.

    Parameters
    ----------
    path
        Its path or URL.
    coordinates, data
        Whether there are the values of coordinates, or of all variables.
    """
    own = opened.hierarchy.generation == "hdf5" or opened.hierarchy.generation.startswith("CDF-")
    if own and os.path.isfile(path) and shutil.which("ncdump"):
        with suppress(ImportError, OSError):
            import netCDF4

            with netCDF4.Dataset(path) as other:
                return str(other.tocdl(coordinates, data))
    from nczarr_xarray.cli.dump import dataset_name, write_cdl

    root = opened.hierarchy.root
    lines: list[str] = []
    read = replace(opened, exact=True).read if coordinates or data else None
    selected = None
    if coordinates and not data:
        variables = root.all_variables()
        selected = frozenset(v.path for v in variables if v.name in {d.name for d in v.dimensions})
    for error in write_cdl(dataset_name(path), root, lines.append, read, selected):
        raise error
    return "".join(lines)
