"""Arrays of characters as arrays of texts, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

_RAW = ("none", "None", "bytes")


def stringtoarr(string: str | bytes, NUMCHARS: int, dtype: str = "S") -> np.ndarray:  # noqa: N803
    """Return the characters of a text as an array of `NUMCHARS`, padded with NULs.

    Parameters
    ----------
    string
        The text.
    NUMCHARS
        The number of characters.
    dtype
        ``"S"`` for bytes, ``"U"`` for characters of Unicode.
    """
    if dtype not in ("S", "U"):
        raise ValueError("dtype must string or unicode ('S' or 'U')")
    characters = np.zeros(NUMCHARS, f"{dtype}1")
    characters[: len(string)] = (
        tuple(string) if isinstance(string, str) else np.frombuffer(string, "S1")
    )
    return characters


def stringtochar(a: np.ndarray, encoding: str | None = None, n_strlen: int | None = None) -> Any:
    """Return texts as characters along one more dimension.

    Parameters
    ----------
    a
        Texts of fixed length, dtype ``S`` or ``U``.
    encoding
        How texts become bytes; ``"none"`` or ``"bytes"`` for those of `a` as they are. None is
        ASCII for ``S`` and UTF-8 for ``U``.
    n_strlen
        The length of the new dimension; None for the bytes that an element of `a` has.

    Returns
    -------
    numpy.ndarray
        dtype ``S1``, or ``U1`` for ASCII of ``U``, of shape ``a.shape + (n_strlen,)``.
    """
    kind, encoding = _kind(a, encoding)
    length = a.dtype.itemsize if n_strlen is None else n_strlen
    if encoding in _RAW:
        return np.frombuffer(a.tobytes(), "S1").copy()
    texts = a.reshape(-1).tolist()
    if encoding == "ascii" and kind == "U":
        characters = [text.ljust(length, "\0")[:length] for text in texts]
        return np.array([list(one) for one in characters], "U1").reshape((*a.shape, length))
    coded = b"".join(
        (t if isinstance(t, bytes) else t.encode(encoding)).ljust(length, b"\0")[:length]
        for t in texts
    )
    return np.frombuffer(coded, "S1").reshape((*a.shape, length)).copy()


def chartostring(b: np.ndarray, encoding: str | None = None) -> np.ndarray:
    """Return the characters along the last dimension as texts.

    Parameters
    ----------
    b
        Characters, dtype ``S1`` or ``U1``.
    encoding
        That of the bytes; ``"none"`` or ``"bytes"`` leaves them bytes. None is ASCII for ``S``
        and UTF-8 for ``U``.

    Returns
    -------
    numpy.ndarray
        dtype ``U``, or ``S`` without an encoding, of shape ``b.shape[:-1]``.
    """
    kind, encoding = _kind(b, encoding)
    length = int(b.shape[-1])
    plain = np.ascontiguousarray(b if not np.ma.isMaskedArray(b) else b.data)
    if kind == "U":
        return plain.view(f"U{length}").reshape(b.shape[:-1])
    texts = plain.view(f"S{length}") if length else np.zeros((*b.shape[:-1], 1), "S1")
    if encoding not in _RAW:
        decoded = [text.decode(encoding) for text in texts.ravel().tolist()]
        texts = np.array(decoded, f"U{max(1, length)}")
    return texts.reshape(b.shape[:-1])


def _kind(texts: np.ndarray, encoding: str | None) -> tuple[str, str]:
    """Return the kind of the dtype of texts, and their encoding."""
    kind = texts.dtype.kind
    if kind not in "SU":
        raise ValueError("type must be string or unicode ('S' or 'U')")
    return kind, encoding or ("ascii" if kind == "S" else "utf-8")
