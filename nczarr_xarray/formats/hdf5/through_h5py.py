"""Reading through h5py: virtual datasets, checked before, and data in other files."""

from __future__ import annotations

import asyncio
import glob
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError, UnsupportedError
from nczarr_fsspec.ranges.filesystem import ByteRangeFile
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes
from nczarr_xarray.chunks.pieces import BoundingBox, Index
from nczarr_xarray.codecs.libhdf5 import only_user
from nczarr_xarray.formats.hdf5.binary import MOST_DIMENSIONS, Cursor, Frame, verify
from nczarr_xarray.formats.hdf5.datasets import H5Dataset, OtherLayout
from nczarr_xarray.formats.hdf5.heaps import read_global_heap
from nczarr_xarray.formats.hdf5.netcdf_types import Bits, decoded
from nczarr_xarray.formats.hdf5.tree import H5Group
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import LibraryArray, mapped

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Soft links on the way to a dataset, or virtual datasets on the way to data, at most.
_MOST_LINKS = 16
#: Bytes up to which a box is read with all that is in it: many steps take libhdf5 longer.
LARGE_BOX = 1 << 24
#: Sources that were found to be there: paths of files, and names of datasets in them.
Checked: TypeAlias = set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class H5pyArray(LibraryArray):
    """A dataset that libhdf5 reads.

    Parameters
    ----------
    path
        Path of the dataset in its file.
    dtype
        Dtype of the values; objects are text.
    reason
        Why the parser here cannot read it.
    bits
        Of integers that do not fill their bytes: where their bits are.
    errors
        What to do with text that is not UTF-8, in the words of `bytes.decode`.
    """

    dtype: np.dtype
    reason: str
    bits: Bits | None
    errors: str = "strict"

    def exact(self) -> H5pyArray:
        return replace(self, errors="surrogateescape")

    def selections(self, store: Any) -> H5pyReader:
        return H5pyReader(store.source, self)


class H5pyReader:
    """Reads selections of one dataset through h5py. Picklable; threads use libhdf5 in turn.

    Parameters
    ----------
    source
        The file.
    array
        One of its datasets.

    Raises
    ------
    UnsupportedError
        If h5py is not installed.
    """

    has_readers = False

    def __init__(self, source: ByteSource, array: H5pyArray) -> None:
        self._source = source
        self._array = array
        self._checked: Checked = set()
        _need_h5py(array.path, array.reason)
        _log.debug("%s: %s is read by h5py, for it %s", source.url, array.path, array.reason)

    def read(self, key: Sequence[Index], *, points: bool = False) -> np.ndarray:
        """Read a selection: its bounding box is read, and the selection taken from it.

        Of a large box libhdf5 itself leaves out what is between the steps of slices.

        Parameters
        ----------
        key
            One index per dimension: an integer, a slice or an array of integers.
        points
            Whether arrays select single points together, which then run along
            the first dimensions of the result (numpy's ``vindex``).

        Raises
        ------
        FormatError, StoreError
            If libhdf5 cannot read it.
        """
        box = BoundingBox(key, self._array.shape)
        if box.size:
            if box.size * self._array.dtype.itemsize > LARGE_BOX:
                box.leave_out_steps()
            read = partial(self.read_box, box.slices)
            values = self._values(
                _through_h5py(self._source, self._array.path, self._checked, read)
            )
        else:
            values = np.empty(box.shape, dtype=self._array.dtype.newbyteorder("="))
        return box.take(values, points=points)

    def read_box(self, box: Sequence[slice], dataset: Any) -> Any:
        if self._array.bits is not None:
            return self._array.bits.values(_stored(dataset, box))
        if self._array.dtype.kind != "O":
            # by HDF5's own rules; h5py would read some enums as bool, and some pairs as complex
            dataset = dataset.astype(self._array.dtype.newbyteorder("="))
        return dataset[tuple(box)]

    def _values(self, values: Any) -> np.ndarray:
        """Return the values that h5py read, with the dtype of the variable."""
        array = np.asarray(values)
        if self._array.dtype.kind != "O":
            return array
        path, errors = self._array.path, self._array.errors

        def text(value: Any) -> str:
            if isinstance(value, str):
                return value
            return decoded(bytes(value).partition(b"\0")[0], path, errors)

        return mapped(text, array)


def _stored(dataset: Any, box: Sequence[slice]) -> np.ndarray:
    """Return the bytes of elements as they are stored."""
    import h5py

    kind, space = dataset.id.get_type(), dataset.id.get_space()
    steps = tuple(part.step or 1 for part in box)
    shape = tuple(len(range(part.start, part.stop, part.step or 1)) for part in box)
    stored = np.empty(shape, f"V{kind.get_size()}")
    if box:
        space.select_hyperslab(tuple(part.start for part in box), shape, steps)
    memory = h5py.h5s.create_simple(shape) if box else h5py.h5s.create(h5py.h5s.SCALAR)
    dataset.id.read(memory, space, stored, kind)
    return stored


def extent_of(source: ByteSource, path: str) -> tuple[int, ...]:
    """Return the shape of a virtual dataset as it follows from its sources.

    Raises
    ------
    FormatError, StoreError
        If libhdf5 cannot find it, or there is no source.
    UnsupportedError
        If h5py is not installed.
    """
    _need_h5py(path, "is a virtual dataset")
    shape: tuple[int, ...] = _through_h5py(source, path, set(), attrgetter("shape"))
    return shape


def _need_h5py(path: str, reason: str) -> None:
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            path, f"{reason}, which needs h5py: pip install 'nczarr-xarray[szip]'"
        ) from None


def _through_h5py(source: ByteSource, path: str, checked: Checked, use: Callable[[Any], T]) -> T:
    """Return what `use` makes of a dataset that is open in h5py.

    Errors are those of `_dataset`, raised anew without the frames that have objects of h5py. Such
    an object may outlive Python, in an error that is kept. Then libhdf5 calls Python when the
    process ends, which crashes.
    """
    try:
        with _dataset(source, path, checked) as dataset:
            return use(dataset)
    except NCZarrError as error:
        again = type(error)(error.object, error.reason)
    raise again


@contextmanager
def _dataset(source: ByteSource, path: str, checked: Checked) -> Iterator[Any]:
    """Open a dataset in h5py under the lock of libhdf5, and turn its errors into ours.

    `checked` has the sources in other files that need not be looked at again.
    """
    try:
        with _opened(source) as file:
            dataset = _follow(file, path)
            _refuse_other_files(source, path, file, dataset, checked)
            if dataset.external:
                name = dataset.name
                del dataset  # of one that is open libhdf5 changes no prefix
                dataset = _beside(file, name)
            yield dataset
        if isinstance(source, LocalFileBytes):
            source.read(0, 1)  # raises an error if this is no longer the file that was opened
    except NCZarrError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, NCZarrError):
            raise cause from None
        raise FormatError(path, f"libhdf5 cannot read it: {error}") from error


def _beside(file: Any, name: str) -> Any:
    """Return a dataset with external data, whose files are looked for beside this one.

    libhdf5 would look in the working directory, and take whatever file has the name there.
    """
    import h5py

    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_efile_prefix(b"${ORIGIN}")
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


def _refuse_other_files(
    source: ByteSource, path: str, file: Any, dataset: Any, checked: Checked
) -> None:
    """Raise `UnsupportedError` for a remote dataset whose data are in other files.

    A remote file must not lead to files of this machine, and libhdf5 returns
    fill values for files that it does not find. Sources in the same file must
    have data of their own, so that they form no circle.
    """
    local = Path(source.path) if isinstance(source, LocalFileBytes) else None
    others = {name.decode(errors="replace") if isinstance(name, bytes) else name
              for name, _, _ in dataset.external or ()}  # fmt: skip
    sources: dict[str, set[str]] = {}
    if dataset.is_virtual:
        for mapping in dataset.virtual_sources():
            for name in _files(local and local.parent, mapping.file_name):
                sources.setdefault(name, set()).add(mapping.dset_name)
    here = sources.pop(".", set())
    for name in others | sources.keys():
        if local is None:
            raise FormatError(path, f"has its data in the file {name!r}, beside this one")
        other = local.parent / name
        _need_file(path, other, name)
        if name in sources and other.samefile(local):
            here |= sources[name]
        else:
            for source_name in sources.get(name, ()):
                _check_source(path, other, source_name, ((local.resolve(), dataset.name),), checked)
    for name in map(_first, here):
        found = _follow(file, name)
        if found.is_virtual or found.external:
            raise UnsupportedError(path, f"its source {name!r} has no data of its own")


def _need_file(path: str, file: Path, name: str) -> None:
    """Raise `StoreError` if a file is not there, or is no file: libhdf5 may wait for a pipe."""
    if not file.is_file():
        what = "is no file" if file.exists() else "is not there"
        raise StoreError(path, f"has its data in the file {name!r}, which {what}")


def _check_source(
    path: str, file: Path, name: str, above: tuple[tuple[Path, str], ...], checked: Checked
) -> None:
    """Raise an error if a source in another file is not there, or leads back to what it is for.

    libhdf5 returns fill values for the one, and follows the other until the process dies.
    """
    import h5py

    key = str(file), name
    if key in checked:
        return
    _need_file(path, file, file.name)
    with h5py.File(file, "r") as opened:
        found = opened.get(_first(name))
        if found is None and _first(name) != name:
            return  # of numbered ones, none may be there yet
        if not isinstance(found, h5py.Dataset):
            raise FormatError(path, f"has its data in {name!r} of {file.name!r}, no dataset")
        place = Path(found.file.filename).resolve()
        one = place, found.name
        if one in above or len(above) > _MOST_LINKS:
            raise UnsupportedError(path, f"its source {name!r} in {file.name!r} has it as a source")
        for mapping in found.virtual_sources() if found.is_virtual else ():
            for where in _files(place.parent, mapping.file_name):
                below = place if where == "." else place.parent / where
                _check_source(path, below, mapping.dset_name, (*above, one), checked)
    checked.add(key)


def _files(folder: Path | None, pattern: str) -> set[str]:
    """Return the first file that a pattern names, and all in `folder` that libhdf5 may open."""
    found = {_first(pattern)}
    if folder is not None and _first(pattern) != pattern.replace("%%", "%"):
        parts = (glob.escape(part).replace("%b", "*") for part in pattern.split("%%"))
        found.update(glob.iglob("%".join(parts), root_dir=folder))
    return found


def _first(pattern: str) -> str:
    """Return the first name of a pattern, in which %b is the number of a block and %% is %."""
    return "%".join(part.replace("%b", "0") for part in pattern.split("%%"))


def _follow(file: Any, path: str) -> Any:
    """Return the dataset at a path as libhdf5 finds it, but never one of another file.

    Raises
    ------
    FormatError
        If there is none.
    """
    import h5py

    found, names, links = file, path.split("/"), 0
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
        if isinstance(link, h5py.SoftLink) and links < _MOST_LINKS:
            links += 1
            found = file if link.path.startswith("/") else found
            names = link.path.split("/") + names
        elif isinstance(link, h5py.HardLink):
            found = found[name]
        else:
            raise FormatError(path, "is not in this file")
    if not isinstance(found, h5py.Dataset):
        raise FormatError(path, "is not a dataset")
    return found


@contextmanager
def _opened(source: ByteSource) -> Iterator[Any]:
    """Open the file in h5py, under the lock of libhdf5."""
    import h5py

    if isinstance(source, LocalFileBytes):
        # data in other files are found from the path of this one
        with only_user(), h5py.File(source.path, "r") as file:
            yield file
        return
    assert isinstance(source, (LocalBytes, RemoteBytes))
    # not closed: that would close the source
    with only_user(), collection_paused():
        if isinstance(source, RemoteBytes):
            # h5py holds its lock while libhdf5 waits for bytes. If the loop's thread collected an
            # object of h5py as garbage, it would wait for that lock: a deadlock. So collection is
            # paused, and this waits for the end of one that is running in that thread:
            source.run(asyncio.sleep(0))
        with h5py.File(ByteRangeFile(source), "r") as file:
            yield file


# -- descriptions of virtual datasets ----------------------------------------------------------


_LONGEST = (1 << 63) - 1

#: Version 0 is of HDF5 1.10. Version 1, of 2.0, may leave out a name that is repeated, and the name
#: of the same file (libhdf5 2.0, observed).
_VERSIONS = (0, 1)
_SHARED_FILE, _SHARED_DATASET, _SAME_FILE = 1, 2, 4  # flags of version 1
#: Bytes of a mapping at least: two selections.
_SHORTEST = 2 * 16
_NONE, _POINTS, _HYPERSLAB, _ALL = range(4)
#: The file of a source that is in the same file.
_HERE = b"."


async def check_mappings(frame: Frame, root: H5Group, dataset: H5Dataset, path: str) -> bool:
    """Check that libhdf5 can follow the mappings of a dataset, if it is a virtual one.

    Parameters
    ----------
    root
        The tree of the file, read completely: sources in the same file
        are to be in it, with data of their own.
    path
        Path of the dataset.

    Returns
    -------
    Whether its extent follows from its sources, whatever its dataspace says: a mapping has no
    limit, and reaches as far as a source that grows, or as there are files of a pattern.

    Raises
    ------
    FormatError
        If they are not.
    UnsupportedError
        If a source in the same file is virtual, too, has its data in external
        files, or is named by a pattern.
    """
    layout = dataset.layout
    if not isinstance(layout, OtherLayout) or layout.mappings is None:
        return False
    address, index = layout.mappings
    if address is None:
        return False
    # the dataset may have been shortened
    longest = tuple(_LONGEST if limit is None else limit for limit in dataset.space.maxshape)
    what = f"{path}, mappings in the global heap at {address}"
    heap = (await read_global_heap(frame, [address]))[address]
    if not heap.whole:
        raise frame.error(what, "its objects and free space do not cover it")
    size = int(heap.sizes[index]) if index < len(heap.sizes) else -1
    if size < 0:
        raise frame.error(what, f"no object {index}")
    start = int(heap.starts[index])
    block = memoryview(heap.data)[start : start + size]
    verify(block, frame, what)
    names, unlimited = read_mappings(Cursor(block[:-4], frame, what), longest)
    for name in names:
        _check_stated_source(frame, root, name, path)
    return unlimited


def read_mappings(cursor: Cursor, shape: tuple[int, ...]) -> tuple[list[bytes], bool]:
    """Check the mappings; return the source paths in this file, and whether one has no limit."""
    version, count = cursor.uint(1), cursor.length()
    if version not in _VERSIONS:
        raise cursor.error(f"has version {version}, known are 0 and 1")
    if count > cursor.remaining // _SHORTEST:
        raise cursor.error(f"{count} mappings in {cursor.remaining} bytes")
    files: list[bytes] = []
    names: list[bytes] = []
    unlimited = False
    for number in range(count):
        flags = cursor.uint(1) if version else 0
        if flags not in (0, 1, 2, 3, 4, 6):
            raise cursor.error(f"mapping {number} has the flags {flags}")
        files.append(_HERE if flags & _SAME_FILE else _name(cursor, files, flags & _SHARED_FILE))
        names.append(_name(cursor, names, flags & _SHARED_DATASET))
        source, target = _selection(cursor), _selection(cursor, shape)
        unlimited = unlimited or target == math.inf
        if not {None, math.inf} & {source, target} and source != target:
            raise cursor.error(f"mapping {number} is of {source} elements to {target}")
    if cursor.remaining:
        raise cursor.error(f"{cursor.remaining} bytes behind the last mapping")
    here = (n for f, n in zip(files, names, strict=True) if f == _HERE)
    return list(dict.fromkeys(here)), unlimited


def _check_stated_source(frame: Frame, root: H5Group, name: bytes, path: str) -> None:
    """Check that a source in the same file has data of its own there."""
    source = f"its source {name.decode('utf-8', 'backslashreplace')!r}"
    if b"%" in name:
        raise UnsupportedError(path, f"{source} is named by a pattern")
    member: object = root
    for part in name.split(b"/"):
        if part not in (b"", b"."):
            members = member.members if isinstance(member, H5Group) else {}
            member = members.get(part.decode("utf-8", "surrogateescape"))
    if isinstance(member, NCZarrError):
        raise frame.error(path, f"{source}: {member.reason}")
    if not isinstance(member, H5Dataset):
        raise frame.error(path, f"{source} is not a dataset of this file")
    if isinstance(member.layout, OtherLayout):
        raise UnsupportedError(path, f"{source} has no data either: {member.layout.reason}")


def _name(cursor: Cursor, before: list[bytes], shared: int) -> bytes:
    """Return a name, or one of the names `before` if it is `shared`."""
    if shared:
        number = cursor.length()
        if number >= len(before):
            raise cursor.error(f"mapping {len(before)} has the name of a later one")
        return before[number]
    rest = bytes(cursor.data[cursor.position :])
    end = rest.find(b"\0")
    if end < 1:
        raise cursor.error("a name is missing")
    return bytes(cursor.take(end + 1))[:-1]


def _selection(cursor: Cursor, shape: tuple[int, ...] | None = None) -> float | None:
    """Return the number of elements of a selection.

    It is infinite without a limit, and None if the selection does not tell.

    Parameters
    ----------
    shape
        The largest shape of the source, if that is known.
    """
    kind, version = cursor.uint(4), cursor.uint(4)
    if kind in (_NONE, _ALL) and version == 1:
        if cursor.uint(4) or cursor.uint(4):
            raise cursor.error("a selection of all or nothing with bounds")
        return 0 if kind == _NONE else None
    if kind != _HYPERSLAB or version not in (1, 2, 3):
        raise cursor.error(f"a selection of type {kind} and version {version}")
    # in version 1 every hyperslab is a list of blocks
    regular = version > 1 and bool(cursor.uint(1) & 1)
    width = {1: 4, 2: 8}.get(version) or cursor.uint(1)
    if version < 3:
        cursor.take(8 if version == 1 else 4)  # reserved, length
    rank = cursor.uint(4)
    if width not in (2, 4, 8) or not 0 < rank <= MOST_DIMENSIONS:
        raise cursor.error(f"a selection in {rank} dimensions, of numbers of {width} bytes")
    if shape is not None and rank != len(shape):
        raise cursor.error(f"a selection in {rank} dimensions of a dataset of shape {shape}")
    if regular:
        return _regular(cursor, rank, width, shape)
    blocks = cursor.uint(width)
    if not 0 < blocks <= cursor.remaining // (2 * rank * width):
        raise cursor.error(f"a selection of {blocks} blocks")
    total = 0
    for _ in range(blocks):
        starts, ends = ([cursor.uint(width) for _ in range(rank)] for _ in range(2))
        _check_bounds(cursor, starts, [end + 1 for end in ends], shape)
        total += math.prod(end + 1 - start for start, end in zip(starts, ends, strict=True))
    return total


def _regular(cursor: Cursor, rank: int, width: int, shape: tuple[int, ...] | None) -> float:
    total, unlimited = 1, False
    endless = (1 << 8 * width) - 1
    starts, stops = [], []
    for _ in range(rank):
        start, stride, count, block = (cursor.uint(width) for _ in range(4))
        if not (stride and count and block) or (count > 1 and stride < block):
            raise cursor.error(f"a selection of {count} blocks of {block} every {stride}")
        starts.append(start)
        endless_here = endless in (count, block)
        unlimited = unlimited or endless_here
        stops.append(start if endless_here else start + (count - 1) * stride + block)
        total *= count * block
    _check_bounds(cursor, starts, stops, shape)
    return math.inf if unlimited else total


def _check_bounds(
    cursor: Cursor, starts: list[int], stops: list[int], shape: tuple[int, ...] | None
) -> None:
    lengths = shape or (_LONGEST,) * len(starts)
    for start, stop, length in zip(starts, stops, lengths, strict=True):
        if not start <= stop <= length:
            raise cursor.error(f"a selection from {start} to {stop} of {length}")
