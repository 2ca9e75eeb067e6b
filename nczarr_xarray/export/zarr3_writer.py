"""Writing the data of one array of Zarr 3: zarr-python encodes, our stores take the objects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.export.gate import ArrayWriter, Gate
from nczarr_xarray.formats.nczarr.jsontext import loads
from nczarr_xarray.formats.zarr3.array import FILE, ZarrArray, array_in, plain
from nczarr_xarray.model import grid_of, mapped, readable


class Zarr3Writer(ArrayWriter):
    """Writes blocks of one array, each of whole objects (shards, or chunks). Picklable.

    Parameters
    ----------
    array
        The new array; its chunk shape is that of the objects.
    store
        Where they are put.
    """

    def __init__(self, array: ZarrArray, store: WritableStore) -> None:
        super().__init__()
        self.array: ZarrArray = array
        self.store = store
        self.start = (0,) * len(array.shape)

    @classmethod
    def of_document(
        cls, path: str, dtype: np.dtype, document: bytes, store: WritableStore
    ) -> Zarr3Writer:
        """Return the writer of the array at a path whose ``zarr.json`` is given."""
        key = f"{path}/{FILE}"
        metadata = plain(loads(document, key), key)
        chunks = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        shape = tuple(metadata["shape"])
        return cls(ZarrArray(path, shape, chunks, dtype, json.dumps(metadata)), store)

    def write(
        self,
        values: np.ndarray,
        first: tuple[int, ...] | None = None,
        *,
        threads: int | None = None,
        done: Callable[[int], None] | None = None,
    ) -> int:
        """Write one block, which begins and ends where objects do (or the array).

        `threads` is not used: zarr-python has its own setting, ``async.concurrency``.
        """
        self.check_lasts(self.store.url)
        if 0 in values.shape:
            return 0
        from nczarr_xarray.zarr.offered import StoreSink

        first = first or (0,) * values.ndim
        part = tuple(slice(at, at + size) for at, size in zip(first, values.shape, strict=True))
        ends = zip(part, self.array.chunk_shape, self.array.shape, strict=True)
        if any(p.start % c or (p.stop % c and p.stop != n) for p, c, n in ends):
            reason = f"does not consist of whole objects, which have shape {self.array.chunk_shape}"
            raise ValueError(f"{self.array.path}{_spelled(part)} {reason}")
        with self._gate:
            puts = Gate()
            sink = StoreSink(self.store, puts)
            try:
                metadata = json.loads(self.array.metadata)
                array_in(sink, self.array.path, metadata)[part or ...] = _as_zarr(values)
            except NCZarrError:
                raise
            except Exception as error:  # zarr and the codecs raise whatever they like
                reason = f"cannot be encoded ({error})"
                raise FormatError(f"{self.array.path}{_spelled(part)}", reason) from error
            finally:
                puts.shut()  # none comes to a tree that was given up, and made anew by it
        if done is not None:
            done(math.prod(grid_of(values.shape, self.array.chunk_shape)))
        return sink.put


def _as_zarr(values: np.ndarray) -> np.ndarray:
    """Return values with text as zarr-python takes it: valid, and never bytes."""
    if values.dtype.kind != "O":
        return values
    return mapped(
        lambda t: t.decode("utf-8", "replace") if isinstance(t, bytes) else readable(t), values
    )


def _spelled(part: tuple[slice, ...]) -> str:
    return f"[{', '.join(f'{one.start}:{one.stop}' for one in part)}]" if part else ""
