"""How much a copy reads at a time."""

from __future__ import annotations

import numpy as np
import pytest

from nczarr_xarray.export import contents
from nczarr_xarray.export.contents import StoredSource


def sizes_read(monkeypatch: pytest.MonkeyPatch, slab: int) -> list[int]:
    """Let copies read slabs of so many bytes; return the list of what each read will bring."""
    sizes: list[int] = []
    read = StoredSource.read

    def counted(self: StoredSource, part: tuple[slice, ...]) -> np.ndarray:
        values = read(self, part)
        sizes.append(values.nbytes)
        return values

    monkeypatch.setattr(contents, "SLAB_BYTES", slab)
    monkeypatch.setattr(StoredSource, "read", counted)
    return sizes
