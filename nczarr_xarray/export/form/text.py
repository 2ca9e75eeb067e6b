"""Texts to store: which objects are text, and how long they are, so that none is cut."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.model import Dimension, bytes_of

if TYPE_CHECKING:
    import xarray as xr


def whole_text(variable: xr.Variable, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return `encoding` of text with a dtype that no text of `variable` is too long for.

    Other encodings are returned as they are.

    xarray cuts texts that are longer than the inherited dtype.
    """
    dtype = encoding.get("dtype")
    if text_type(dtype) is None or dtype is str or dtype == "S1":
        return dict(encoding)
    if variable.dtype.kind != "S":
        return {key: value for key, value in encoding.items() if key != "dtype"}
    wanted, size = np.dtype(dtype), variable.dtype.itemsize
    return {**encoding, "dtype": f"S{max(wanted.itemsize, size)}" if wanted.kind == "S" else str}


def text_type(dtype: Any) -> str | None:
    """Return the netCDF type of text that an encoding's dtype asks for; None if it is no text."""
    if dtype is None:
        return None
    try:
        return {"U": "string", "S": "char"}.get(np.dtype(dtype).kind)
    except TypeError:
        return None  # xarray raises an error for it


def empty_text(variable: xr.Variable) -> None:
    """Change objects in memory that are all missing, or none at all, into texts.

    Without a text as ``_FillValue`` they are empty. xarray makes numbers of them; dask's objects
    become texts in any case.
    """
    if variable.dtype.kind != "O" or variable.chunks is not None:
        return
    import pandas as pd  # as xarray does; commands without xarray do without it

    if pd.isna(variable.values).all():
        fill = variable.encoding.get("_FillValue")
        variable.data = np.full(variable.shape, fill if isinstance(fill, str) else "")


def settle_objects(variable: xr.Variable, encoding: Mapping[str, Any]) -> None:
    """Change objects that are bytes into bytes of one length, and load numbers of dask's objects.

    Only the values tell the type of these. Text and dates stay dask's.

    Parameters
    ----------
    encoding
        With the ``_FillValue`` that missing bytes become; without one they are empty.
    """
    if variable.dtype != object or variable.dtype.metadata is not None:
        return  # xarray notes in the metadata that objects are text
    if not isinstance(_first_known(variable.data), (bytes, Number, np.bool_)):
        return
    import pandas as pd

    values = variable.load().to_numpy()
    missing = pd.isna(values)
    if all(isinstance(value, bytes) for value in values[~missing].tolist()):
        fill = encoding.get("_FillValue")
        mark = bytes_of(fill) if isinstance(fill, str) else fill
        empty = mark if isinstance(mark, bytes) else b""
        variable.data = np.where(missing, empty, values).astype("S")


def _first_known(objects: Any) -> Any:
    """Return the first object that is not missing; None if there is none. dask's are computed."""
    import pandas as pd

    lazy = hasattr(objects, "blocks")
    for index in np.ndindex(*objects.numblocks) if lazy else [()]:
        block = np.asarray(objects.blocks[index].compute() if lazy else objects)
        known = block[~pd.isna(block)]
        if known.size:
            return known[0]
    return None


def decoded(source: xr.Variable) -> xr.Variable:
    """Return bytes as text (ValueError for what is not UTF-8; of dask's, when it is computed)."""
    dtype = np.dtype(f"U{source.dtype.itemsize}")
    if source.chunks is None:
        return source.copy(data=_decode(source.to_numpy(), dtype))
    return source.copy(data=source.data.map_blocks(_decode, dtype, dtype=dtype))


def _decode(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    try:
        return np.asarray(np.char.decode(block, "utf-8"), dtype)
    except UnicodeDecodeError as error:
        raise ValueError(f"holds bytes that are no text in UTF-8 ({error})") from None


def longest_text(source: xr.Variable, *, characters: bool = False) -> int:
    """Return the number of bytes of the longest text in UTF-8, or that of its `characters`."""
    if source.chunks is not None and source.size:
        lengths = source.data.map_blocks(
            _longest_in_block,
            characters=characters,
            dtype=np.intp,
            chunks=tuple((1,) * n for n in source.data.numblocks),
        )
        return int(lengths.max().compute())
    return longest(source.values, characters=characters)


def _longest_in_block(block: np.ndarray, characters: bool) -> np.ndarray:
    return np.full((1,) * block.ndim, longest(block, characters=characters), dtype=np.intp)


def longest(texts: np.ndarray, *, characters: bool = False) -> int:
    """Return the length of the longest text: in bytes of UTF-8, or in `characters`.

    Raises
    ------
    ValueError
        If a text cannot be stored.
    """
    length = 0
    for text in texts.ravel().tolist():
        data = text if isinstance(text, bytes) else bytes_of(str(text))
        if b"\0" in data:
            raise ValueError(f"holds a text with NUL, where netCDF ends it: {text!r:.60}")
        length = max(length, len(text if characters else data))
    return length


def excess(source: xr.Variable, dtype: np.dtype) -> str | None:
    """Say which text elements of an existing array cannot hold; None if they hold all.

    Parameters
    ----------
    dtype
        Of the array: bytes (UTF-8) or characters of one length, or objects of any.
    """
    characters = dtype.kind == "U"
    room = None if dtype.hasobject else dtype.itemsize // (4 if characters else 1)
    try:
        if source.dtype.kind == "S" and not characters:  # whole, as they are
            length = source.dtype.itemsize
        else:
            length = longest_text(source, characters=characters)
    except UnicodeEncodeError as error:  # half of a surrogate pair
        return f"holds a text that has no UTF-8 ({error})"
    except ValueError as error:
        return str(error)
    if room is None or length <= room:
        return None
    return (
        f"holds a text of {length} {'characters' if characters else 'bytes'}, and is stored with "
        f"{room} at most; text is never cut: write the whole variable anew, with a larger "
        "_nczarr_maxstrlen in its encoding"
    )


def as_stored(
    source: xr.Variable, names: tuple[Hashable, ...], hidden: Dimension | None
) -> xr.Variable:
    """Return characters with the dimensions that are stored.

    Parameters
    ----------
    source
        The characters into which xarray has split texts.
    names
        Names of the stored dimensions.
    hidden
        The last stored dimension, if the dataset shows texts.
    """
    *others, last = source.dims
    if hidden is None:
        single = source.dims != names and source.shape[-1] == 1
        return source.isel({last: 0}) if single else source
    if others != [*names[:-1]]:
        return source
    data = source.data
    if source.chunks is not None:  # dask pads nothing but numbers
        data = source.chunk({last: -1}).data
        chunks = (*data.chunks[:-1], (max(hidden.size, *data.chunks[-1]),))
        data = data.map_blocks(_lengthened, hidden.size, dtype=data.dtype, chunks=chunks)
    else:
        data = _lengthened(data, hidden.size)
    return type(source)(names, data, source.attrs)


def _lengthened(characters: np.ndarray, length: int) -> np.ndarray:
    """Return characters with NULs behind them, if these are fewer than `length` for each text."""
    missing = length - characters.shape[-1]
    if missing <= 0:
        return characters
    behind = np.zeros((*characters.shape[:-1], missing), characters.dtype)
    return np.concatenate((characters, behind), axis=-1)
