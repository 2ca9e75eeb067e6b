"""What CMIP7 wants of the chunks of a netCDF-4 file.

Source: the manual of ``check_cmip7_packing`` (NCAS-CMS/cmip7_repack 1.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nczarr_xarray.formats.cf import text_in
from nczarr_xarray.model import Group, Variable, grid_of

#: Bytes of a chunk of the data variable before codecs, at least.
LEAST = 4 << 20


def times(root: Group) -> list[str]:
    """Return the paths of ``time`` and its bounds, which are to be one chunk each."""
    time = root.variables.get("time")
    if time is None:
        return []
    bounds = text_in(time.attributes, "bounds")
    return [f"/{name}" for name in ("time", bounds) if name in root.variables]


def data(root: Group) -> str:
    """Return the path of the data variable, which the attribute ``variable_id`` names."""
    return f"/{text_in(root.attributes, 'variable_id') or ''}"


def lacking(shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes that chunks of data are too short by; 0 for one chunk.

    Chunks that would have enough with one more step pass, too.
    """
    step = math.prod(chunks[1:]) * itemsize if len(chunks) > 1 else 0
    short = LEAST - step - math.prod(chunks) * itemsize
    return max(0, short) if math.prod(grid_of(shape, chunks)) > 1 else 0


def chunk_shape(root: Group, variable: Variable, chunks: Sequence[int]) -> tuple[int, ...]:
    """Return the chunk lengths of a variable, made longer where they are too short.

    Parameters
    ----------
    root
        The dataset.
    chunks
        What its lengths would be.
    """
    shape = tuple(max(1, length) for length in variable.shape)
    if variable.path in times(root):
        return shape
    lengths, itemsize = [*chunks], variable.dtype.itemsize
    if variable.path == data(root) and lacking(shape, tuple(chunks), itemsize):
        for axis in (0, *reversed(range(1, len(shape)))):
            others = math.prod(lengths) // lengths[axis] * itemsize
            lengths[axis] = min(shape[axis], max(lengths[axis], -(-LEAST // others)))
    return tuple(lengths)
