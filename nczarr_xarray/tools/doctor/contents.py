"""What a simulated server has: the metadata of a real dataset, and as many bytes as its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.transport.request import Data, Extent
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.tools.doctor.simulated import BLANK, FRAGMENT, Content
from nczarr_xarray.tools.survey import VariableStorage, sizes_of

#: Extents that a request names where the server is not known: most servers of HTTP take several.
RANGES = 100


class FileContent(Content):
    """One file.

    Parameters
    ----------
    file
        The real one.
    more
        Bytes that are behind its end.
    """

    def __init__(self, file: DataFile, more: int = 0) -> None:
        source = file.source
        ranges = source.limits.ranges if isinstance(source, RemoteBytes) else RANGES
        super().__init__(ranges, can_list=False)
        self._file = file
        self._size = source.size + more

    def size(self, path: str) -> int:
        return self._size

    def read(self, path: str, start: int, stop: int) -> Data:
        source, ranges = self._file.source, self._file.ranges
        end = min(stop, source.size)
        if BLANK.get() or end <= start:
            return bytes(stop - start)
        if end < stop:  # the first bytes of a small file, and what is behind its end
            return bytes(self.read(path, start, end)) + bytes(stop - end)
        if isinstance(source, RemoteBytes):
            assert ranges is not None
            return source.run(ranges.read_metadata([Extent(start, stop)]))[0]
        assert isinstance(source, LocalBytes)
        return source.read(start, stop)


class AggregationContent(Content):
    """A master, and the fragments, or files, that it names: all like one.

    Parameters
    ----------
    master
        All but the fragments.
    fragment
        The real one.
    """

    def __init__(self, master: Content, fragment: Content) -> None:
        super().__init__(fragment.ranges, can_list=master.can_list)
        self._master = master
        self._fragment = fragment

    def size(self, path: str) -> int | None:
        content, path = self._of(path)
        return content.size(path)

    def read(self, path: str, start: int, stop: int) -> Data:
        content, path = self._of(path)
        return content.read(path, start, stop)

    def fetched(self, paths: Iterable[str]) -> None:
        found: dict[Content, list[str]] = {}
        for content, path in map(self._of, paths):
            found.setdefault(content, []).append(path)
        for content, together in found.items():
            content.fetched(together)

    def index(self, path: str, part: slice) -> bytes | None:
        content, path = self._of(path)
        return content.index(path, part)

    def list(self, path: str) -> frozenset[str] | None:
        content, path = self._of(path)
        return content.list(path)

    def _of(self, path: str) -> tuple[Content, str]:
        """Return what a path is of, and what it is called there."""
        own = path.removeprefix(FRAGMENT)
        return self._master if own == path else self._fragment, own


class TreeContent(Content):
    """A tree.

    Parameters
    ----------
    store
        The real one.
    facts
        Of its variables: what chunks are about as long as, where that is not asked.
    chunk_nbytes
        Of some variables, by the path of the array, other lengths than the real ones.
    """

    def __init__(
        self, store: KeyStore, facts: Sequence[VariableStorage], chunk_nbytes: Mapping[str, int]
    ) -> None:
        local = isinstance(store, LocalStore)
        super().__init__(1, can_list=local or bool(getattr(store, "can_list", False)))
        self._store = store
        self._told = dict(chunk_nbytes)
        self._about = {
            one.array.path: round(one.ratio * one.nbytes / max(1, one.objects)) for one in facts
        }
        self._documents: dict[str, bytes | None] = {}
        self._indexes: dict[str, bytes | None] = {}

    def fetched(self, paths: Iterable[str]) -> None:
        wanted = [path for path in paths if path not in self._documents and _is_document(path)]
        for path, found in zip(wanted, self._store.get_many(wanted), strict=True):
            if isinstance(found, StoreError):
                raise found
            self._documents[path] = found

    def size(self, path: str) -> int | None:
        if _is_document(path):
            self.fetched([path])
            found = self._documents[path]
            return None if found is None else len(found)
        array = self._array(path)
        if array in self._told:
            return self._told[array]
        if isinstance(self._store, DirectoryStore):
            return sizes_of(self._store, [path])[path]
        return self._about.get(array)

    def _array(self, path: str) -> str:
        """Return the path of the array that a chunk is of."""
        array = path.rpartition("/")[0]
        while array not in self._about and "/" in array:  # numbers of chunks may be folders
            array = array.rpartition("/")[0]
        return array

    def read(self, path: str, start: int, stop: int) -> Data:
        found = self._documents.get(path)
        return bytes(stop - start) if found is None else memoryview(found)[start:stop]

    def index(self, path: str, part: slice) -> bytes | None:
        """Return the index of a shard; behind a network, that of another shard of the array."""
        store = self._store
        if isinstance(store, LocalStore):
            return store.get(path, part)
        array = self._array(path)
        if array not in self._indexes:
            assert isinstance(store, RemoteStore)
            self._indexes[array] = store.run(store.get(path, part))
        return self._indexes[array]

    def list(self, path: str) -> frozenset[str] | None:
        (found,) = self._store.list_many([path])
        if isinstance(found, StoreError):
            raise found
        return found


def _is_document(key: str) -> bool:
    """Tell whether a key is one of metadata: chunks have numbers."""
    name = key.rpartition("/")[2]
    return name.startswith(".") or not name[:1].isdigit()
