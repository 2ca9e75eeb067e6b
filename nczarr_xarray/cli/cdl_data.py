"""The data section of CDL: values in rows, broken into lines as ncdump breaks them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Protocol

import numpy as np

from nczarr_xarray.cli.cdl_values import Values, columns, name, row_text, spelling
from nczarr_xarray.model import Variable, position_of

#: bytes of one read, and elements that are text at one time
READ_BYTES = 1 << 25
TEXT_ELEMENTS = 1 << 15

#: a line ends before the token that would reach this column (blanks count)
LINE_COLUMNS = 79


class ReadBlock(Protocol):
    """Reads the block of a variable that `key` selects, one slice per dimension."""

    def __call__(self, variable: Variable, key: tuple[slice, ...], /) -> np.ndarray: ...


def write_data(
    variable: Variable, read: ReadBlock, write: Callable[[str], object], indent: int
) -> None:
    """Write the values of `variable`, block by block; nothing for an empty one.

    Parameters
    ----------
    read, write
        Read a block of values; write a piece of text.
    indent
        Columns by which the group of the variable is indented.

    Raises
    ------
    NCZarrError
        The errors of `read`. Values that were read before have been written.
    """
    shape = variable.shape
    if 0 in shape:
        return
    head = f"\n{' ' * indent} {name(variable.name)} =" + ("\n  " if shape[1:] else " ")
    margin = 2 if shape[1:] else columns(variable.name) + 4
    line = Line(write, indent)
    # the rows inside one index of each dimension that has braces
    braced = [
        math.prod(shape[level:-1])
        for level, dim in enumerate(variable.dimensions)
        if level and dim.unlimited
    ]
    blocks = (read(variable, key).reshape(-1) for key in block_keys(variable))
    parts = _char_rows if variable.nc_type == "char" else _number_rows
    last, row, begins = math.prod(shape[:-1]) - 1, 0, True
    for tokens, ends in parts(variable, blocks):
        if begins:
            opening = "{" * sum(row % rows == 0 for rows in braced)
            write((head if row == 0 else "") + opening)
            line.column = indent + margin + len(opening)
        if ends:
            tokens[-1] += "}" * sum((row + 1) % rows == 0 for rows in braced)
        if variable.nc_type == "char":
            write(tokens[0])  # the only data that ncdump never breaks
        else:
            line.put(tokens, ends)
        if ends:
            write(" ;\n" if row == last else ",\n  ")
            row += 1
        begins = ends


def block_keys(variable: Variable) -> Iterator[tuple[slice, ...]]:
    """Yield selections that cover the variable in row-major order, each of at most `READ_BYTES`.

    Each is contiguous: single indices of the first dimensions, a range of the
    next, everything of the rest. Ranges end where chunks end if that limit allows.
    """
    shape = variable.shape
    if not shape:
        yield ()
        return
    size = 64 if variable.dtype.kind == "O" else variable.dtype.itemsize
    sizes = [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axis = next((axis for axis, size in enumerate(sizes) if size <= READ_BYTES), len(shape) - 1)
    step = max(READ_BYTES // sizes[axis], 1)
    if variable.array is not None and step > variable.array.chunk_shape[axis]:
        step -= step % variable.array.chunk_shape[axis]
    rest = [slice(0, length) for length in shape[axis + 1 :]]
    # (`itertools.product` would first make lists of the indices)
    for number in range(math.prod(shape[:axis])):
        outer = position_of(number, shape[:axis])
        for start in range(0, shape[axis], step):
            along = slice(start, min(start + step, shape[axis]))
            yield (*(slice(index, index + 1) for index in outer), along, *rest)


def _number_rows(variable: Variable, blocks: Iterable[Values]) -> Iterator[tuple[list[str], bool]]:
    """Yield the tokens of a row, or of a part of a long one, and whether the row ends with them."""
    spell = spelling(variable)
    length = variable.shape[-1] if variable.shape else 1
    left = length
    for block in blocks:
        for start in range(0, block.size, TEXT_ELEMENTS):
            tokens = spell(block[start : start + TEXT_ELEMENTS])
            position = 0
            while position < len(tokens):
                part = tokens[position : position + left]
                position += left
                left -= len(part)
                yield part, left == 0
                left = left or length


def _char_rows(variable: Variable, blocks: Iterable[Values]) -> Iterator[tuple[list[str], bool]]:
    """Yield the text of a row, or of a part of a long one, and whether the row ends with it.

    NULs at the end of a row are dropped.
    """
    length = variable.shape[-1] if variable.shape else 1
    left, nuls = length, 0
    for block in blocks:
        data = block.tobytes()
        start = 0
        while start < len(data):
            opening = '"' if left == length else ""
            part = data[start : start + min(left, TEXT_ELEMENTS)]
            start += len(part)
            left -= len(part)
            text = part.rstrip(b"\0")
            if text:
                part, nuls = bytes(nuls) + text, len(part) - len(text)
                opening += row_text(part)
            else:
                nuls += len(part)
            yield [opening if left else f'{opening}"'], left == 0
            if left == 0:
                left, nuls = length, 0


class Line:
    """Output that ends a line before a token that would be too long for it.

    Attributes
    ----------
    indent
        Indentation of the group; a continued line is indented by four columns more.
    column
        The column of the next token. In a group it differs from that on the
        terminal: ncdump counts the indent even where it does not print it.
    """

    def __init__(self, write: Callable[[str], object], indent: int) -> None:
        self.write = write
        self.indent = indent
        self.column = 0

    def put(self, tokens: list[str], ends: bool) -> None:
        """Write some tokens of a row, each followed by a comma except the one that ends the row."""
        text = ", ".join(tokens) if ends else ", ".join([*tokens, ""])
        if self.column + columns(text) < LINE_COLUMNS:  # the common case of short rows
            self.write(text)
            self.column += columns(text)
            return
        texts = [f"{token}, " for token in tokens]
        if ends:
            texts[-1] = tokens[-1]
        totals = list(accumulate(map(columns, texts)))
        start = before = at_least = 0
        while True:
            stop = bisect_left(totals, before + LINE_COLUMNS - self.column, start)
            stop = max(stop, start + at_least)
            if stop == len(texts) - 1 and columns(texts[stop]) <= 2:
                stop += 1  # one or two characters never move to the next line
            self.write("".join(texts[start:stop]))
            if stop == len(texts):
                self.column += totals[-1] - before
                return
            self.write("\n" + " " * (self.indent + 4))
            self.column = self.indent + 4
            start, before, at_least = stop, totals[stop - 1] if stop else 0, 1
