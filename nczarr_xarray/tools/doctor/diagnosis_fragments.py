"""What there is to say of aggregations, by their tables of fragments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nczarr_fsspec.text import format_size
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.doctor.aggregations import Aggregation, FileSample
from nczarr_xarray.tools.finding import Finding

#: Fragments of fewer bytes before codecs take longer to open than to read, ...
_SMALL = 1 << 20
#: where there are more than this.
_FEW = 64

_JOIN = "copy it into one dataset: nczarr copy"


def of_fragments(aggregation: Aggregation) -> Iterator[Finding]:
    """Yield what the table of fragments tells, and, if there is one, the sample."""
    array, path = aggregation.array, aggregation.path
    assert isinstance(array, FragmentArray)
    fragments, names = array.fragments, [dim.name for dim in aggregation.variable.dimensions]
    count = sum(address is not None for address in fragments.addresses)
    bounds = zip(fragments.starts, fragments.stops, strict=True)
    lengths = [sorted(set((stops - starts).tolist())) for starts, stops in bounds]
    each = math.prod(array.chunk_shape) * aggregation.itemsize
    shapes = " × ".join(_range(found) for found in lengths)
    yield Finding(
        "note",
        "fragments",
        path,
        f"is made of {count:,} fragments of {shapes}, at most {format_size(each)} before codecs; "
        "each that a read touches is opened",
    )
    if missing := fragments.count - count:
        yield Finding(
            "note",
            "fragments-missing",
            path,
            f"has no data in {missing:,} of {fragments.count:,} places for fragments",
        )
    if count > _FEW and each < _SMALL:
        single = [
            name
            for name, found, parts in zip(names, lengths, fragments.grid, strict=True)
            if found == [1] and parts > _FEW
        ]
        steps = f": one for each step of {single[0]}" if single else ""
        yield Finding(
            "warning",
            "small-fragments",
            path,
            f"has {count:,} fragments of {format_size(each)} before codecs{steps}; to open each "
            "takes as many requests as to read it, or more",
            _JOIN,
        )
    sample = aggregation.sample
    if isinstance(sample, FileSample) and not sample.alike and count > 1:
        yield Finding(
            "note",
            "fragments-unlike",
            path,
            "has fragments whose metadata differ, or lie far from the beginning of their files: "
            "those of each are read and parsed",
        )


def _range(lengths: Sequence[int]) -> str:
    first, last = lengths[0], lengths[-1]
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
