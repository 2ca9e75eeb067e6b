"""Aggregations: one of their fragments, which stands for all, and what their tables tell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.dataset.alike_files import read_alike_variable
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets, options_for
from nczarr_xarray.dataset.fragment_parts import FragmentGrid, needs_names, reading_of
from nczarr_xarray.dataset.fragments import AT_A_TIME, AT_ONCE
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import FileChunks, FileStrides, FragmentArray, Variable
from nczarr_xarray.tools.predict.counting import Counted, CountedFile, CountedTree, Key
from nczarr_xarray.tools.predict.network import Network, Round, together
from nczarr_xarray.tools.survey import VariableStorage, survey


@dataclass(frozen=True, slots=True)
class Sample:
    """A fragment.

    Parameters
    ----------
    variable
        It itself.
    options
        How it is opened.
    dataset
        That it is in.
    facts
        Of its variable, in a tree.
    alike
        Whether another file has the same metadata, which then are not parsed again.
    """

    variable: Variable
    options: OpenOptions
    dataset: DataFile | KeyStore
    facts: tuple[VariableStorage, ...] = ()
    alike: bool = True

    @property
    def at_a_time(self) -> int:
        """How many such fragments are read at a time."""
        return AT_A_TIME if isinstance(self.dataset, DataFile) else AT_ONCE

    def rounds(self, key: Key, network: Network) -> list[Round]:
        """Return what opening its dataset and reading a selection asks for."""
        counted: Counted
        if isinstance(self.dataset, DataFile):
            counted = CountedFile(self.dataset, network, self.options)
        else:
            counted = CountedTree(self.dataset, self.facts, self.options)
        counted.fetch([(counted.variable(self.variable.path), key)])
        return counted.rounds


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
        plan = plan_outer(key, array.shape, grid.edges)
        for _, part in grid.parts(plan, np.empty(0), points=False):
            if part is None:
                continue
            reading = reading_of(array, part.number, sample.variable)
            own = reading.request(part.shares[0].key, points=False).key
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
        return Sample(variable, options, file, (facts,))
    if not place.address or not isinstance(file, DataFile):
        raise FormatError(array.path, "only those in files or trees of their own can be predicted")
    if not isinstance(own, (FileChunks, FileStrides)):
        raise FormatError(array.path, "another library reads them, whose requests are its own")
    like = file.parse(read_alike_variable(file, place.name, entire=entire))
    second = opener.open(fragments.places(other)[0], entire=entire).reader.store
    alike = like is not None and isinstance(second, DataFile) and like.open(second) is not None
    return Sample(variable, options, file, alike=alike)


def _lengths(array: FragmentArray, number: int) -> list[int]:
    return [stop - start for start, stop in array.fragments.extent(number)]
