"""How much a copy reads at a time."""

from __future__ import annotations

import numpy as np
import pytest

from nczarr_xarray.export import stored_source
from nczarr_xarray.export.stored_source import StoredSource


def sizes_read(monkeypatch: pytest.MonkeyPatch, slab: int) -> list[int]:
    """Let copies read slabs of so many bytes; return the list of what each read will bring."""
    sizes: list[int] = []
    read = StoredSource.read

    def counted(self: StoredSource, part: tuple[slice, ...]) -> np.ndarray:
        values = read(self, part)
        sizes.append(values.nbytes)
        return values

    monkeypatch.setattr(stored_source, "SLAB_BYTES", slab)
    monkeypatch.setattr(StoredSource, "read", counted)
    return sizes
