"""Compare two datasets, whatever formats they are in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import chunk_lengths
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.compare.reading import (
    READ_BYTES,
    SHOWN,
    Blocks,
    Part,
    Tally,
    block_lengths,
    checked_sample,
    itemsize,
    opened,
    paths_of,
    read_parts,
)
from nczarr_xarray.tools.compare.report import DECODING, Comparison, Difference
from nczarr_xarray.tools.compare.structure import (
    Outline,
    attribute_object,
    differences,
    notes,
    readable_variables,
    unreadable,
)
from nczarr_xarray.tools.compare.values import (
    EXACT,
    Tolerance,
    decoded_text,
    differing,
    differing_decoded,
    is_decoded,
    spelled,
    variable_type,
)

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

#: A variable of each dataset.
Pair: TypeAlias = tuple[Variable, Variable]
#: Bytes of a block of a sample.
_SAMPLE_BYTES = 1 << 22


def compare(
    a: Any,
    b: Any,
    *,
    variables: Collection[str] | None = None,
    sample: int | None = None,
    tolerance: float | str = 0,
    encoding: bool = False,
    callback: Callback | None = None,
) -> Comparison:
    """Compare two datasets: structure, attributes with types, and values, all to the last bit.

    Values are compared as they are stored and, where types or attributes would unpack them in
    another way, as CF's rules decode them.

    Formats, chunks, codecs, byte order and the order of objects are no differences. Memory is
    bounded, whatever the sizes of the datasets are.

    Parameters
    ----------
    a, b
        Whatever `open_hierarchy` takes, or what it returned, which stays open.
    variables
        Paths of the variables to compare, or a single one, with what belongs to them; None for
        everything.
    sample
        Number of blocks of each variable to compare, always the same ones; None for all.
    tolerance
        How much numbers may differ: ``0.01``, or ``"1%"`` of their magnitude.
    encoding
        Whether chunks, codecs and byte order are compared as well.
    callback
        A callback of fsspec that gets the progress (`fsspec.callbacks`).

    Returns
    -------
    Comparison
        `equal` says whether the datasets are equal; ``print`` shows the report.

    Raises
    ------
    NCZarrError
        If a dataset cannot be opened, or an option has no meaning.
    """
    check_callback(callback)
    allowed, sample = Tolerance.of(tolerance), checked_sample(sample)
    with ExitStack() as stack:
        sides = [opened(target, stack) for target in (a, b)]
        only = paths_of(variables, *sides)
        failed = [path for side in sides for path in unreadable(side)]
        outlines = [Outline.of(side, only, storage=encoding).without(failed) for side in sides]
        structure = list(differences(*outlines))
        tally = Tally(structure)
        divided = list(_divided(sides, only, sample))
        unlike = {one.object for one in structure}
        progress = Progress("compare", shown=False, unit=" blocks", callback=callback)
        counts = [blocks.count for _, blocks in divided]
        progress.expect(sum(counts if sample is None else (min(sample, n) for n in counts)))
        for part, values in read_parts(sides, _parts(divided, sample), tally):
            progress.advance()
            stored, mask = _differing(part, values, allowed, unlike)
            if mask.any():
                tally.differ(part.path, int(mask.sum()), _shown(part, stored, mask, values))
        progress.advance(progress.total - progress.done)  # of what cannot be read
        for side in sides:
            tally.finish(side, only)
        place_a, place_b = (side.store.url for side in sides)
        return tally.result(place_a, place_b, notes(*outlines))


def _divided(
    sides: list[Opened], only: Collection[str] | None, sample: int | None
) -> Iterator[tuple[Pair, Blocks]]:
    """Yield the variables of one shape that both datasets have, divided into blocks.

    They are of one type, or both of what CF decodes.
    """
    of_a, of_b = (readable_variables(side.hierarchy.root) for side in sides)
    most = READ_BYTES if sample is None else _SAMPLE_BYTES
    for path, variable in of_a.items():
        other = of_b.get(path)
        if other is None or (only is not None and path not in only):
            continue
        alike = variable_type(other) == variable_type(variable)
        if other.shape != variable.shape or not (alike or all(map(is_decoded, (variable, other)))):
            continue
        grids = [chunk_lengths(v.array, len(v.shape)) for v in (variable, other)]
        lengths = block_lengths(variable.shape, itemsize(variable), grids, most)
        yield (variable, other), Blocks(variable.shape, lengths)


def _parts(divided: Iterable[tuple[Pair, Blocks]], sample: int | None) -> Iterator[Part]:
    """Yield the blocks of variables, or a sample of them."""
    for pair, blocks in divided:
        for number in blocks.numbers(sample):
            yield Part(pair, blocks.part(number))


def _differing(
    part: Part, values: Sequence[np.ndarray], allowed: Tolerance, unlike: AbstractSet[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tell, for each element, whether it is stored otherwise, and whether it differs in any way.

    `unlike` has the objects of the structure that differ: if none of them decodes the variable,
    elements that are stored alike are decoded alike.
    """
    a, b = part.variables
    one, other = values
    if variable_type(a) == variable_type(b):
        # the numbers of an enum stand for names
        stored = differing(one, other, allowed if a.enum is None else EXACT)
        if unlike.isdisjoint(attribute_object(part.path, name) for name in DECODING):
            return stored, stored
    else:
        stored = np.zeros(one.shape, bool)
    if not all(map(is_decoded, part.variables)):
        return stored, stored
    return stored, stored | differing_decoded((a, b), (one, other), allowed)


def _shown(
    part: Part, stored: np.ndarray, mask: np.ndarray, values: Sequence[np.ndarray]
) -> list[Difference]:
    """Return the first differing values of a part, decoded if they are stored alike."""
    found = []
    for flat in np.flatnonzero(mask)[:SHOWN].tolist():
        place = np.unravel_index(flat, mask.shape)
        index = tuple(int(at) + s.start for at, s in zip(place, part.part, strict=True))
        ones = [one.reshape(-1)[flat : flat + 1] for one in values]
        if stored.reshape(-1)[flat]:
            a, b = (spelled(one)[0] for one in ones)
        else:
            a, b = map(decoded_text, part.variables, ones)
        what = "value" if stored.reshape(-1)[flat] else "decoded value"
        found.append(Difference(f"variable {part.path}", what, index, a, b))
    return found
