"""Aggregations: one of their fragments, which stands for all, and what their tables tell."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.text import format_size
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.dataset.alike_files import read_variable_pattern
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.dataset.fragment_parts import FragmentGrid
from nczarr_xarray.dataset.fragment_values import needs_names, reading_of
from nczarr_xarray.dataset.fragments import AT_ONCE
from nczarr_xarray.dataset.open_fragments import options_for
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.dataset.remote_parts import AT_A_TIME
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import FileChunks, FileStrides, FragmentArray, Variable
from nczarr_xarray.tools.doctor.counting import Counted, CountedFile, CountedTree, Key
from nczarr_xarray.tools.doctor.network import Network, Round, together
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.survey import VariableStorage, survey

#: Fragments of fewer bytes before codecs take longer to open than to read, ...
_SMALL = 1 << 20
#: where there are more than this.
_FEW = 64

_JOIN = "copy it into one dataset: nczarr copy"


@dataclass(frozen=True, slots=True)
class Sample(ABC):
    """A fragment.

    Parameters
    ----------
    variable
        It itself.
    options
        How it is opened.
    """

    variable: Variable
    options: OpenOptions

    @property
    @abstractmethod
    def at_a_time(self) -> int:
        """How many such fragments are read at a time."""

    @abstractmethod
    def open(self, network: Network) -> Counted:
        """Open its dataset anew."""

    def rounds(self, key: Key, network: Network) -> list[Round]:
        """Return what a selection of the fragment asks for."""
        counted = self.open(network)
        counted.fetch([(counted.variable(self.variable.path), key)])
        return counted.rounds


@dataclass(frozen=True, slots=True)
class FileSample(Sample):
    """A fragment that is in a file.

    Parameters
    ----------
    file
        That it is in.
    alike
        Whether another one has the same metadata, which then are not parsed again.
    """

    file: DataFile
    alike: bool

    @property
    def at_a_time(self) -> int:
        return AT_A_TIME

    def open(self, network: Network) -> Counted:
        return CountedFile(self.file, network, self.options)


@dataclass(frozen=True, slots=True)
class TreeSample(Sample):
    """A fragment that is in a tree.

    Parameters
    ----------
    store
        Of that tree.
    facts
        Of its variable.
    """

    store: KeyStore
    facts: VariableStorage

    @property
    def at_a_time(self) -> int:
        return AT_ONCE

    def open(self, network: Network) -> Counted:
        return CountedTree(self.store, [self.facts], self.options)


@dataclass(frozen=True, slots=True)
class Aggregation(VariableStorage):
    """An aggregation of which reads can be predicted.

    Parameters
    ----------
    sample
        One of its fragments; None if that was not looked at.
    """

    sample: Sample | None = None

    @property
    def inside(self) -> VariableStorage:
        """About how it would be stored in one file."""
        array = None if self.sample is None else self.sample.variable.array
        if array is None or len(array.shape) != len(self.shape):
            return self
        return VariableStorage(self.variable, replace(array, shape=self.shape))

    def rounds(self, key: Key, network: Network) -> list[Round]:
        """Return what a selection asks for: fragments are opened and read, all like the sample.

        Raises
        ------
        NCZarrError
            If the sample cannot be read.
        """
        array, sample = self.array, self.sample
        assert isinstance(array, FragmentArray)
        assert sample is not None
        grid = FragmentGrid(array)
        known: dict[str, list[Round]] = {}
        reads = []
        for _, part in grid.parts(plan_outer(key, array.shape, grid.edges)):
            if part is None:
                continue
            reading = reading_of(array, part.number, sample.variable)
            own = reading.request(part.key, points=False).key
            if repr(own) not in known:
                known[repr(own)] = sample.rounds(own, network)
            reads.append(known[repr(own)])
        return together(reads, sample.at_a_time)


def sample_of(aggregation: VariableStorage) -> Sample:
    """Open one fragment in the middle, and another one of the same lengths.

    Raises
    ------
    FormatError
        If reads of such fragments cannot be predicted: says why.
    NCZarrError
        If a fragment cannot be opened.
    """
    array = aggregation.array
    assert isinstance(array, FragmentArray)
    fragments, opener = array.fragments, array.opener
    numbers = [n for n, address in enumerate(fragments.addresses) if address is not None]
    if fragments.values is not None or not numbers:
        raise FormatError(array.path, "it has values in the place of fragments")
    first = numbers[len(numbers) // 2]
    lengths = _lengths(array, first)
    other = next(n for n in reversed(numbers) if _lengths(array, n) == lengths)
    entire = needs_names(array)
    assert isinstance(opener, FragmentDatasets)
    place = fragments.places(first)[0]
    found = opener.open(place, entire=entire)
    file, variable, own = found.reader.store, found.variable, found.variable.array
    options = options_for(place.name, None, entire=entire)
    if place.address and isinstance(file, (DirectoryStore, FsspecStore)):
        hierarchy = CountedTree(file, (), options).opened.hierarchy
        facts = survey(Opened(file, hierarchy), {variable.path}).of(variable.path)
        if facts is None:
            raise FormatError(
                variable.path, "another library reads them, whose requests are its own"
            )
        return TreeSample(variable, options, file, facts)
    if not place.address or not isinstance(file, DataFile):
        raise FormatError(array.path, "only those in files or trees of their own can be predicted")
    if not isinstance(own, (FileChunks, FileStrides)):
        raise FormatError(array.path, "another library reads them, whose requests are its own")
    pattern = file.parse(read_variable_pattern(file, place.name, entire=entire))
    source = opener.open(fragments.places(other)[0], entire=entire).reader.store
    alike = (
        pattern is not None
        and isinstance(source, DataFile)
        and pattern.fits(bytes(source.source.head[: pattern.stop]), source.source.size)
    )
    return FileSample(variable, options, file, alike)


def _lengths(array: FragmentArray, number: int) -> list[int]:
    return [stop - start for start, stop in array.fragments.extent(number)]


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
