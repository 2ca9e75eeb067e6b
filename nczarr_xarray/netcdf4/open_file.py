"""An open dataset, as all its groups share it: what it is read from, or written by."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.forks import cached_property
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import Variable as StoredVariable
from nczarr_xarray.netcdf4.indexing import Index
from nczarr_xarray.netcdf4.loops import LoopReader
from nczarr_xarray.netcdf4.variable import Dimension, Elements

if TYPE_CHECKING:
    from nczarr_xarray.dataset.variable import VariableReader
    from nczarr_xarray.netcdf4.aggregating import MasterWriter
    from nczarr_xarray.netcdf4.writing import TreeWriter

#: netCDF4-python's names of the formats of files.
_CLASSIC = {
    "CDF-1": "NETCDF3_CLASSIC",
    "CDF-2": "NETCDF3_64BIT_OFFSET",
    "CDF-5": "NETCDF3_64BIT_DATA",
}
#: What `Dataset` passes on to the opening.
_OPTIONS = (
    *("allow", "anonymous_dimension_prefix", "consolidated", "index_cache", "memory_limit"),
    *("replace", "storage_options", "use_zarr_fill_value_as_mask"),
)
#: What only aggregations have: as of `nczarr_xarray.to_cfa`.
_OF_AGGREGATIONS = ("cfa_version", "max_object_size", "subarray_shape")


class OpenFile:
    """What all groups of an open dataset share: the store, the format, the dimensions by path."""

    def __init__(
        self, target: Any, name: Any, mode: str, kind: str, options: Mapping[str, Any]
    ) -> None:
        for option in options:
            if option not in (*_OPTIONS, *_OF_AGGREGATIONS):
                raise TypeError(f"Dataset takes no argument {option!r}")
        self.target = target
        self.options = dict(options)
        named = isinstance(name, (str, os.PathLike))
        self.path = os.fspath(name) if named else f"<{type(name).__name__}>"
        self.writer: TreeWriter | MasterWriter | None = None
        self.closed = False
        self.fills = True
        self.dimensions: dict[str, Dimension] = {}
        self.data_model, self.disk_format = "NETCDF4", "NCZARR"
        if mode not in ("r", "rs"):
            if mode not in ("w", "x", "a", "r+", "ws", "as"):
                raise ValueError(f"mode must be 'w', 'x', 'r', 'a' or 'r+', got '{mode}'")
            if kind.startswith("NETCDF3") and mode[0] in "wx":
                raise ValueError(f"{self.path}: format={kind!r} is of files: name it .nc")
            self.writer = self._writer("a" if mode == "r+" else mode[0], kind)
            self.root = self.writer.root
            if mode[0] in "wx" and kind == "NETCDF4_CLASSIC":
                self.data_model = kind
            return
        opened = self.opened = open_with(target, OpenOptions(**options))
        self.root = opened.hierarchy.root
        self._of_generation(opened.hierarchy.generation)
        if opened.hierarchy.classic_model and self.data_model == "NETCDF4":
            self.data_model = "NETCDF4_CLASSIC"

    def _of_generation(self, generation: str) -> None:
        """Note netCDF4-python's words for a format."""
        self.data_model = _CLASSIC.get(generation, "NETCDF4")
        formats = {"hdf5": "HDF5", **dict.fromkeys(_CLASSIC, "NETCDF3")}
        self.disk_format = formats.get(generation, "NCZARR")

    def _writer(self, mode: Any, kind: str) -> TreeWriter | MasterWriter:
        """Return what writes the dataset."""
        from nczarr_xarray.netcdf4.through_netcdf4 import writes_tree

        options = dict(self.options)
        memory = options.pop("memory_limit", None)
        version, most, shape = (options.pop(name, None) for name in _OF_AGGREGATIONS)
        if kind.startswith("CFA") or not writes_tree(self.target, kind):
            from nczarr_xarray.export.cfa.gradual import GradualAggregation
            from nczarr_xarray.export.options import largest_fragment
            from nczarr_xarray.netcdf4.aggregating import MasterWriter

            found: Any = {"CFA3": "CFA3", "CFA4": "CFA4"}.get(kind)
            made = GradualAggregation(self.target, mode, format=found, version=version, **options)
            largest = largest_fragment(most, options.get("storage_options"))
            master = MasterWriter(made, memory, largest, shape)
            self._of_generation("CDF-1" if made.kind == "netCDF3" else "hdf5")
            return master
        from nczarr_xarray.export.gradual_tree import GradualTree
        from nczarr_xarray.netcdf4.writing import TreeWriter

        pure = {"ZARR": True, "NCZARR": False}.get(kind)
        return TreeWriter(GradualTree(self.target, mode, pure=pure, **options), memory)

    def cdl(self, *, coordinates: bool, data: bool) -> str:
        """Return the dataset as CDL; what was written is committed before.

        Parameters
        ----------
        coordinates, data
            Whether there are the values of coordinates, or of all variables.
        """
        self.sync()
        opened = self.opened if self.writer is None else self.writer.opened
        assert opened is not None
        if self.disk_format != "NCZARR" and os.path.isfile(self.path) and shutil.which("ncdump"):
            with suppress(ImportError, OSError):
                import netCDF4

                with netCDF4.Dataset(self.path) as other:
                    return str(other.tocdl(coordinates, data))
        from nczarr_xarray.cli.dump import dataset_name, write_cdl

        root = opened.hierarchy.root
        lines: list[str] = []
        read = replace(opened, exact=True).read if coordinates or data else None
        selected = None
        if coordinates and not data:
            variables = root.all_variables()
            selected = frozenset(
                v.path for v in variables if v.name in {d.name for d in v.dimensions}
            )
        for error in write_cdl(dataset_name(self.path), root, lines.append, read, selected):
            raise error
        return "".join(lines)

    def sync(self) -> None:
        """Commit what was written."""
        if self.writer is not None:
            self.writer.commit()

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


class StoredElements(Elements):
    """Reads stored elements of one variable; safe in threads."""

    def __init__(self, opened: Opened, variable: StoredVariable) -> None:
        super().__init__(variable.array)
        self.classic = opened.hierarchy.generation.startswith("CDF-")
        self.opened = opened
        self.variable = variable

    @cached_property
    def _reader(self) -> VariableReader | LoopReader:
        reader = self.opened.reader(self.variable)
        return reader if loop_of(self.opened.store) is None else LoopReader(reader)

    @property
    def filled(self) -> bool:
        """Whether elements that were not written read as a fill value."""
        return self.classic or super().filled

    def read(self, key: tuple[Index, ...]) -> np.ndarray:
        """Return an orthogonal selection; dimensions that integers index are left out."""
        return self._reader.read(key)
