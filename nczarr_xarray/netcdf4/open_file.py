"""An open dataset, as all its groups share it: what it is read from, or written by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import NCZarrError, URLError
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import ChunkedArray
from nczarr_xarray.model import Variable as StoredVariable
from nczarr_xarray.netcdf4.creating import model_of
from nczarr_xarray.netcdf4.growing import GrowingElements
from nczarr_xarray.netcdf4.stored import StoredElements
from nczarr_xarray.netcdf4.variable import Dimension, Variable, lengths_of

if TYPE_CHECKING:
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
            return
        opened = self.opened = open_with(target, OpenOptions(**options))
        self.root = opened.hierarchy.root
        generation = opened.hierarchy.generation
        self.data_model = _CLASSIC.get(generation, "NETCDF4")
        self.disk_format = _disk_format(generation)

    def elements(self, variable: Any, dimensions: tuple[Dimension, ...]) -> Any:
        """Return where the elements of a stored variable are."""
        writer = self.writer
        if writer is None:
            return StoredElements(self.opened, variable)
        assert writer.opened is not None
        if not isinstance(variable.array, ChunkedArray):
            raise variable.error or URLError(variable.path, "cannot be changed")
        reader = writer.opened.reader(variable).exactly()
        made = GrowingElements(writer, variable.array, lengths_of(dimensions), reader)
        writer.elements.append(made)
        return made

    def sync(self) -> None:
        """Commit what was written."""
        if self.writer is not None and self.dataset is not None:
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
            self.writer.close()
        else:
            self.opened.close()

    def load(self, variables: Mapping[str, Variable]) -> dict[str, Any]:
        """Read all of several variables, at the same time if they are remote."""
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
