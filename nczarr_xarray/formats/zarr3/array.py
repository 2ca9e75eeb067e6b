"""One Zarr v3 array: metadata to a `Zarr3Array`, and reading it by the engine or by zarr-python."""

from __future__ import annotations

import base64
import json
import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError, UnsupportedError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.stores.missing_chunks import Document, Presence, changed
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.joint import JointPlan
from nczarr_xarray.chunks.pieces import split_axes
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.codecs.codec import UNKNOWN, Size, packed
from nczarr_xarray.codecs.decompress import blosc_container
from nczarr_xarray.formats.nczarr.attributes import float_of
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, difference, dumps, loads
from nczarr_xarray.formats.nczarr.zarray import MAX_SIZE
from nczarr_xarray.formats.zarr3.native import OF_BYTES, native
from nczarr_xarray.model import Array, CodecConfig

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

FILE = "zarr.json"
#: Codecs that need another one before or behind them, which makes bytes of elements.
_OF_ARRAYS = frozenset({"transpose"})
#: The type of netCDF's char, which zarr-python warns of whenever it meets it.
_CHAR = {"name": "null_terminated_bytes", "configuration": {"length_bytes": 1}}
#: Of the filters of warnings, which a process has in common: threads that changed and restored
#: them in turns would leave those of another behind.
_FILTERS = ProcessLock()
#: A grid of chunks of several lengths along a dimension.
_RECTILINEAR = "rectilinear"
#: Zarr-python makes a list of the chunks of a selection: more would fill the memory.
MAX_CHUNKS = 1 << 24
#: Selections of a remote array that are read at the same time.
_AT_ONCE = 32
#: Bytes that a chunk may have besides what codecs can make of it, and its entry in a shard's index.
_EACH_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Zarr3Array(Array):
    """A Zarr v3 array, as zarr-python understands it.

    Parameters
    ----------
    path
        Key prefix of the array.
    dtype
        Of the values; variable-length text is object.
    chunk_shape
        Smallest unit of reading (inside shards too); the largest one if they differ.
    metadata
        The text of its ``zarr.json``.
    codecs
        As the metadata state them, for display.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    metadata: str
    codecs: tuple[CodecConfig, ...] = ()
    reads_itself: ClassVar[bool] = True

    @property
    def codec_words(self) -> Literal["zarr2", "zarr3", "hdf5"]:
        return "zarr3"

    @property
    def object_shape(self) -> tuple[int, ...]:
        """Lengths per dimension of what one object has at most: a chunk, or a shard of several."""
        grid = json.loads(self.metadata)["chunk_grid"]
        if grid["name"] == _RECTILINEAR:
            return tuple(max(length for length, _ in runs) for runs in _runs(grid, self.shape))
        return tuple(int(length) or 1 for length in grid["configuration"]["chunk_shape"])

    def selections(self, store: KeyStore) -> ZarrReader:
        return ZarrReader(store, self)


@dataclass(frozen=True, slots=True)
class ZarrArray(Zarr3Array):
    """A Zarr v3 array whose objects all have one shape."""

    @property
    def keys(self) -> tuple[tuple[str, ...], str]:
        """What the keys of objects begin with, and what is between their parts."""
        encoding = json.loads(self.metadata).get("chunk_key_encoding", "default")
        given = encoding if isinstance(encoding, dict) else {"name": encoding}
        start, between = (("c",), "/") if given["name"] == "default" else ((), ".")
        return start, (given.get("configuration") or {}).get("separator", between)

    def chunk_name(self, position: tuple[int, ...]) -> str:
        """Return the key of the object that has a chunk."""
        start, between = self.keys
        lengths = zip(position, self.chunk_shape, self.object_shape, strict=True)
        parts = [str(at * chunk // whole) for at, chunk, whole in lengths]
        key = between.join([*start, *parts]) or "0"
        return f"{self.path}/{key}" if self.path else key


@dataclass(frozen=True, slots=True)
class RectilinearArray(Zarr3Array):
    """A Zarr v3 array whose objects, and perhaps whose chunks, have lengths of their own.

    Parameters
    ----------
    blocks
        The lengths of the chunks, per dimension.
    """

    blocks: tuple[tuple[int, ...], ...] = ()


class ZarrReader:
    """Reads selections of a `Zarr3Array`."""

    has_readers = False

    def __init__(self, store: KeyStore, array: Zarr3Array) -> None:
        self._path = array.path
        self._grid = array.shape, array.chunk_shape
        self._store = store
        self._zarr, self._presence, documents = _readable(store, array)
        #: None if zarr-python reads everything
        self._engine: ChunkReader | None = None
        if isinstance(array, ZarrArray):
            how = array.object_shape, array.keys, self._zarr.fill_value, _most_stored(array)
            chunks = native(array, *how, store, self._presence)
            self._engine = None if chunks is None else ChunkReader(chunks, store, *documents)

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        """Read an orthogonal selection, or a pointwise one (as `plan_outer`, `plan_points`)."""
        return self.read_jointly([(key, points)])[0]

    def read_jointly(self, wanted: Sequence[tuple[tuple[Any, ...], bool]]) -> list[np.ndarray]:
        """Read selections, each a key and whether it is of points: what they share is fetched once.

        It is decoded once, too, if the chunk engine can do that. If not, those of a remote store
        are read at the same time. One selection of a remote store is zarr-python's, which reads a
        whole shard in one round.
        """
        is_local = isinstance(self._store, LocalStore)
        engine = self._engine if is_local or len(wanted) > 1 else None
        plans: list[Plan] = []
        for key, points in wanted:
            if not points:
                plans.append(plan_outer(key, *self._grid))
                if (count := plans[-1].count) > MAX_CHUNKS:
                    reason = f"a selection of {count} chunks is too much at once"
                    raise FormatError(self._path, reason)
            elif engine is not None:
                plans.append(plan_points(key, *self._grid))
        if engine is not None:
            return self._by_engine(engine, plans)
        from nczarr_xarray.zarr.offered import Reading

        try:
            with Reading(joint=len(wanted) > 1):
                if len(wanted) == 1 or is_local:
                    found = [self._values(*one) for one in wanted]
                else:
                    contexts = [copy_context() for _ in wanted]  # by which tasks know their read
                    with WaitingThreads(_AT_ONCE, thread_name_prefix="nczarr-load") as pool:
                        waiting = [
                            pool.submit(context.run, self._values, *one)
                            for context, one in zip(contexts, wanted, strict=True)
                        ]
                        found = [one.result() for one in waiting]
            self._check()
            return found
        except (NCZarrError, IndexError):
            raise
        except Exception as error:  # zarr and the codecs raise whatever they like
            if isinstance(error, RuntimeError) and not threading.main_thread().is_alive():
                reason = "cannot be read any more: Python is ending, and zarr's threads have ended"
                raise StoreError(self._path, f"{reason}; read before, or load it") from error
            self._check()
            raise FormatError(self._path, f"cannot be read ({error})") from error

    def _by_engine(self, engine: ChunkReader, plans: Sequence[Plan]) -> list[np.ndarray]:
        if isinstance(self._store, RemoteStore):
            found = self._store.run(engine.read_jointly_remote(JointPlan(plans)))
        elif len(plans) == 1:
            found = [engine.read(plans[0], remember=True)]
        else:
            found = engine.read_jointly(JointPlan(plans))
        self._check()
        return found

    def _values(self, key: tuple[Any, ...], points: bool) -> np.ndarray:
        data = np.asarray(self._points(key) if points else self._outer(key))
        return data.astype(object) if data.dtype.kind == "T" else data

    def _check(self) -> None:
        """Raise `StoreError` if what was read may be of another array."""
        presence = self._presence
        if presence is not None and presence.doubtful:
            self._store.run(presence.check(missing=False))

    def _outer(self, key: tuple[Any, ...]) -> Any:
        if not key:
            return self._zarr[()]
        # zarr-python takes ascending slices only
        ascending = tuple(
            np.arange(*index.indices(size))
            if isinstance(index, slice) and (index.step or 1) < 0
            else index
            for index, size in zip(key, self._zarr.shape, strict=True)
        )
        return self._zarr.oindex[ascending]

    def _points(self, key: tuple[Any, ...]) -> Any:
        if all(isinstance(index, np.ndarray) for index in key):
            return self._zarr.vindex[key]
        indexed, sliced = split_axes(key)
        box: list[Any] = list(key)
        inverse = []
        for axis in indexed:
            box[axis], positions = np.unique(key[axis], return_inverse=True)
            inverse.append(positions.reshape(key[axis].shape))
        data = np.asarray(self._outer(tuple(box)))
        return data.transpose(*indexed, *sliced)[tuple(inverse)]


def plain(document: JSON, key: str) -> Any:
    """Return the document with its numbers as numbers, as zarr-python wants it."""
    try:
        return json.loads(dumps(document))
    except ValueError as error:  # netCDF-C's dialect, which Zarr v3 never had
        raise FormatError(key, f"is not valid JSON ({error})") from None


def _with_bytes(metadata: dict[str, Any]) -> dict[str, Any]:
    """Complete codecs that do not make bytes of elements, as GDAL wrote them up to 3.10.

    What GDAL stored are the elements themselves, little-endian on every machine that matters.
    """
    codecs = metadata.get("codecs", [])
    if not isinstance(codecs, list):
        return metadata
    names = [str(codec.get("name") if isinstance(codec, dict) else codec) for codec in codecs]
    if not all(name in _OF_ARRAYS or name in OF_BYTES for name in names):
        return metadata
    first = next((i for i, name in enumerate(names) if name in OF_BYTES), len(names))
    as_bytes = {"name": "bytes", "configuration": {"endian": "little"}}
    return {**metadata, "codecs": [*codecs[:first], as_bytes, *codecs[first:]]}


def _runs(grid: JSON, shape: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """Return the lengths of a rectilinear grid, per dimension, each with how often it follows."""
    return [
        [(run[0], run[1]) if isinstance(run, list) else (run, 1) for run in stated]
        if isinstance(stated, list)
        else [(stated, -(-size // stated))]
        for stated, size in zip(grid["configuration"]["chunk_shapes"], shape, strict=True)
    ]


def _readable(
    store: KeyStore, described: Zarr3Array
) -> tuple[Any, Presence | None, tuple[Document, ...]]:
    """Make zarr-python's array for reading, and what finds out whether it is still there."""
    from nczarr_xarray.zarr.adopted import ZarrKeyStore
    from nczarr_xarray.zarr.offered import StoreView

    path, metadata = described.path, json.loads(described.metadata)
    if isinstance(store, ZarrKeyStore):
        return array_in(store.store, path, metadata), None, ()
    view = StoreView(store)
    array = array_in(view, path, with_whole_blosc(metadata))
    view.most = _most_stored(described)
    # those of the root may have a copy, and be the only ones
    own = Document(f"{path}/{FILE}".lstrip("/"), partial(_recognize, path, metadata))
    others = (Document(FILE),) if path else ()
    if isinstance(store, LocalStore):  # which of them is there costs nothing to ask
        there = store.get(own.key, slice(0, 1)) is not None
        own, others = (own if there else Document(FILE)), ()
    view.presence = Presence(store, own, *others)
    return array, view.presence, (own, *others)


def _recognize(path: str, metadata: dict[str, Any], store: KeyStore, data: bytes) -> None:
    """Raise `StoreError` if an array is described by other `metadata` now."""
    key = f"{path}/{FILE}".lstrip("/")
    now = _with_bytes(plain({**loads(data, key), "attributes": {}}, key))
    how = difference(*(loads(json.dumps(one).encode(), key) for one in (metadata, now)))
    if how is not None:
        raise changed(store, key, how)


def array_in(store: Any, path: str, metadata: dict[str, Any]) -> Any:
    """Make zarr-python's array of `metadata`, in one of its stores."""
    import zarr
    from zarr.storage import StorePath

    _check_grid(path, metadata)
    with _quiet(metadata):
        return zarr.Array(zarr.AsyncArray.from_dict(StorePath(store, path), metadata))


def _check_grid(path: str, metadata: dict[str, Any]) -> None:
    """Refuse a grid that zarr-python does not read, or of which it would fill the memory."""
    import zarr

    grid = metadata.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != _RECTILINEAR:
        return
    if not zarr.config.get("array.rectilinear_chunks", False):
        reason = "has chunks of different lengths (a rectilinear grid), which zarr-python reads "
        reason += "from 3.2 on, after zarr.config.set({'array.rectilinear_chunks': True})"
        raise UnsupportedError(f"{path}/{FILE}", reason)
    runs = _runs(grid, metadata["shape"])
    count = math.prod(max(1, sum(abs(times) for _, times in along)) for along in runs)
    if count > MAX_CHUNKS:
        reason = f"a rectilinear grid of {count} chunks; {MAX_CHUNKS} are the most that are read"
        raise FormatError(f"{path}/{FILE}", reason)


@contextmanager
def _quiet(metadata: dict[str, Any]) -> Iterator[None]:
    """Leave out zarr-python's warning of the type of char: writing it has a warning of its own."""
    if metadata.get("data_type") != _CHAR:
        yield
        return
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have a Zarr V3 specification")
        yield


def _most_stored(array: Zarr3Array) -> int:
    """Return bytes that an object of chunks may have: no codec makes more of them."""
    if array.dtype.kind == "O":
        return 2 * UNKNOWN.most
    count = math.prod(array.object_shape)
    # each chunk in a shard has an entry in its index, and may have a header
    chunks = count // math.prod(array.chunk_shape)
    return int(2 * count * array.dtype.itemsize + chunks * _EACH_CHUNK)


def describe(store: KeyStore, path: str, metadata: dict[str, Any]) -> Zarr3Array:
    """Make a `Zarr3Array` of the `metadata` of the array at `path`.

    Raises
    ------
    FormatError
        If zarr-python does not understand them, or no reader could read such an array.
    """
    from nczarr_xarray.zarr.offered import StoreView

    metadata = _with_bytes(metadata)
    try:
        array = array_in(StoreView(store), path, metadata)
        dtype = np.dtype(object) if array.dtype.kind == "T" else np.dtype(array.dtype)
        rectilinear = metadata["chunk_grid"]["name"] == _RECTILINEAR
        blocks = array.read_chunk_sizes if rectilinear else tuple((n,) for n in array.chunks)
        chunks = tuple(max(map(int, lengths), default=0) for lengths in blocks)
        shape = tuple(int(n) for n in array.shape)
        with _quiet(metadata):
            stated = array.metadata.to_dict()["codecs"]
        codecs = tuple(
            {"id": codec["name"], **(codec.get("configuration") or {})} for codec in stated
        )
    except NCZarrError:
        raise
    except Exception as error:  # metadata errors of zarr-python come in many types
        raise FormatError(
            f"{path}/{FILE}", f"is not understood by zarr-python ({error})"
        ) from error
    if max(shape, default=0) > MAX_SIZE:
        raise FormatError(f"{path}/{FILE}", f"shape {list(shape)} is more than can be indexed")
    if any(size and not chunk for size, chunk in zip(shape, chunks, strict=True)):
        raise FormatError(f"{path}/{FILE}", "a chunk length is 0")
    chunks = tuple(chunk or 1 for chunk in chunks)
    # such as [0s], by which numpy divides: the process would die of SIGFPE
    if dtype.kind in "mM" and "[0" in dtype.str:
        raise FormatError(f"{path}/{FILE}", f"dtype {dtype.str!r} counts from zero")
    text = json.dumps(metadata)
    if rectilinear:
        return RectilinearArray(path, shape, chunks, dtype, text, codecs, blocks)
    return ZarrArray(path, shape, chunks, dtype, text, codecs)


def fill_value(value: JSON, dtype: np.dtype) -> JSON:
    """Undo what xarray makes of ``_FillValue`` in v3: base64, of floats and bytes.

    Raises
    ------
    ValueError
        If it is neither that nor the name of a float, or is complex, which netCDF is not.
    """
    if dtype.kind == "c":
        raise ValueError("netCDF has no complex numbers")
    if isinstance(value, Number) or not isinstance(value, str):
        return value
    if dtype.kind == "S":
        return base64.standard_b64decode(value).decode("utf-8", "replace")
    return float_of(value) if dtype.kind == "f" else value


# -- blosc ---------------------------------------------------------------------------------------
# Zarr 3's blosc as zarr-python decodes it, but for chunks that were cut off: numcodecs reads behind
# the end of such a chunk, and takes what is in memory there.


def with_whole_blosc(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array whose codecs, in shards too, check what blosc is given."""
    codecs = metadata.get("codecs")
    return {**metadata, "codecs": [_checking(codec) for codec in codecs or ()]}


def _checking(codec: Any) -> Any:
    name = codec.get("name") if isinstance(codec, dict) else codec
    if name in ("blosc", "numcodecs.blosc"):
        return {"name": _whole_blosc()}  # which needs no settings to decode
    if name == "sharding_indexed":
        return {**codec, "configuration": with_whole_blosc(codec["configuration"])}
    return codec


@cache
def _whole_blosc() -> str:
    """Register the codec that decodes chunks that are there to their end; return its name."""
    from zarr.codecs import BloscCodec
    from zarr.registry import register_codec

    class WholeBlosc(BloscCodec):
        @classmethod
        def from_dict(cls, _: Any) -> WholeBlosc:
            return cls()  # which has no settings

        def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
            _check_whole(chunk_bytes, chunk_spec)
            return super()._decode_sync(chunk_bytes, chunk_spec)

        async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
            _check_whole(chunk_bytes, chunk_spec)
            return await super()._decode_single(chunk_bytes, chunk_spec)

    register_codec("nczarr_xarray.blosc", WholeBlosc)
    return "nczarr_xarray.blosc"


def _check_whole(chunk: Buffer, spec: ArraySpec) -> None:
    dtype = spec.dtype.to_native_dtype()
    size = UNKNOWN
    if dtype.kind not in "OT":
        size = packed(Size(math.prod(spec.shape) * dtype.itemsize))
    try:
        blosc_container(chunk.as_numpy_array(), size)
    except FormatError as error:
        raise ValueError(error.reason) from None
