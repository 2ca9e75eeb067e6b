"""The elements of variables of an open dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.codecs.registry import netcdf_filters
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.model import Variable
from nczarr_xarray.netcdf4.indexing import Index

if TYPE_CHECKING:
    from nczarr_xarray.dataset.variable import VariableReader


class StoredElements:
    """Reads stored elements of one variable; safe in threads."""

    def __init__(self, opened: Opened, variable: Variable) -> None:
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

    def filters(self) -> dict[str, Any]:
        """Return netCDF's words for the codecs."""
        array = self.variable.array
        return netcdf_filters(() if array is None else array.codecs)
