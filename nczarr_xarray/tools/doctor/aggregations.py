"""Aggregations: one of their fragments, which stands for all when reads are rehearsed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_xarray.dataset.alike_files import read_alike_variable
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets, options_for
from nczarr_xarray.dataset.fragment_parts import needs_names
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import Array, FileChunks, FileStrides, FragmentArray, Variable
from nczarr_xarray.tools.doctor.contents import FileContent, TreeContent
from nczarr_xarray.tools.doctor.network import Network
from nczarr_xarray.tools.doctor.simulated import Content, NotedStore, Round, SimulatedTransport
from nczarr_xarray.tools.survey import VariableStorage, survey


@dataclass(frozen=True, slots=True)
class FileSample:
    """A fragment that is in a file.

    Parameters
    ----------
    file
        That it is in.
    array
        Its data.
    alike
        Whether another one has the same metadata, which then are not parsed again.
    """

    file: DataFile
    array: FileChunks | FileStrides
    alike: bool

    def content(self) -> Content:
        """Return what a server of such fragments has."""
        return FileContent(self.file)


@dataclass(frozen=True, slots=True)
class TreeSample:
    """A fragment that is in a tree.

    Parameters
    ----------
    store
        Of that tree.
    facts
        Of its variable.
    opening
        What opening a tree like it asks for, round by round.
    """

    store: KeyStore
    facts: VariableStorage
    opening: Sequence[Round]

    @property
    def array(self) -> Array:
        """Its data."""
        return self.facts.array

    def content(self) -> Content:
        """Return what a server of such fragments has."""
        return TreeContent(self.store, [self.facts], {})


Sample: TypeAlias = FileSample | TreeSample


@dataclass(frozen=True, slots=True)
class Aggregation(VariableStorage):
    """An aggregation that can be rehearsed.

    Parameters
    ----------
    sample
        One of its fragments; None if that was not looked at.
    """

    sample: Sample | None = None

    @property
    def inside(self) -> VariableStorage:
        """About how it would be stored in one file."""
        if self.sample is None or len(self.sample.array.shape) != len(self.shape):
            return self
        return VariableStorage(self.variable, replace(self.sample.array, shape=self.shape))


def sample_of(aggregation: VariableStorage) -> Sample:
    """Open one fragment in the middle, and another one of the same lengths.

    Raises
    ------
    FormatError
        If reads of such fragments cannot be rehearsed: says why.
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
    file, own = found.reader.store, found.variable.array
    if place.address and isinstance(file, (DirectoryStore, FsspecStore)):
        return _in_tree(file, found.variable, options_for(place.name, None, entire=entire))
    if not place.address or not isinstance(file, DataFile):
        raise FormatError(array.path, "only those in files or trees of their own can be rehearsed")
    if not isinstance(own, (FileChunks, FileStrides)):
        raise FormatError(array.path, "another library reads them, whose requests are its own")
    like = file.parse(read_alike_variable(file, place.name, entire=entire))
    second = opener.open(fragments.places(other)[0], entire=entire).reader.store
    alike = like is not None and isinstance(second, DataFile) and like.open(second) is not None
    return FileSample(file, own, alike)


def _in_tree(store: KeyStore, variable: Variable, options: OpenOptions) -> TreeSample:
    content = TreeContent(store, (), {})
    transport = SimulatedTransport(content, Network())
    with closing(transport):
        noted = NotedStore(transport, store.url)
        opened = open_keys(noted, options=options)
        facts = survey(Opened(store, opened.hierarchy), {variable.path}).of(variable.path)
    if facts is None:
        raise FormatError(variable.path, "another library reads them, whose requests are its own")
    return TreeSample(store, facts, noted.rounds)


def _lengths(array: FragmentArray, number: int) -> list[int]:
    return [stop - start for start, stop in array.fragments.extent(number)]
