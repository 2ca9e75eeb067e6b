"""Every parser of what others wrote: how to run it on any bytes, and what it may raise.

One row each. `ci/fuzz_coverage.py` tries bytes that lead to code which no others reached;
`tests/whole/test_fuzz_corpus.py` runs what such runs have left (``tests/data/fuzz``).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
from yarl import URL

from nczarr_fsspec.changes.journal import Incomplete, Journal
from nczarr_fsspec.errors import NCZarrError, UnsupportedError, URLError
from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.places.address import is_absolute, locate, parse_address
from nczarr_fsspec.places.names import hint
from nczarr_fsspec.places.rc import find, lookup, parse_rc
from nczarr_fsspec.places.s3netcdf4 import parse_config
from nczarr_fsspec.places.url import parse_url, redact
from nczarr_fsspec.stores import zipformat
from nczarr_fsspec.stores.ownership import Owner, parse_json, writer_of
from nczarr_fsspec.stores.referencefolder import FolderReferences, Rows
from nczarr_fsspec.stores.referenceformat import JSONReferences, References
from nczarr_fsspec.text import parse_size
from nczarr_fsspec.transport.answers import read_answer
from nczarr_fsspec.transport.logins import Logins
from nczarr_fsspec.transport.policy import Clock, Timeout
from nczarr_fsspec.transport.request import Extent, FileVersion, Request, TransientError
from nczarr_fsspec.transport.request_options import Cookies
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.dataset.units import conversion
from nczarr_xarray.formats.cfa.decode import WRITABLE, decode
from nczarr_xarray.formats.cfa.decode import find as find_aggregations
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.hdf5.through_h5py import H5pyArray
from nczarr_xarray.formats.nczarr import jsontext
from nczarr_xarray.model import (
    ChunkedArray,
    Dimension,
    FragmentArray,
    Fragments,
    Group,
    Hierarchy,
    Variable,
)
from tests.support.builders import aggregations
from tests.support.corpora import classic_corpus, hdf5_corpus, samples
from tests.support.faults import filepromises, promises

CORPUS = Path(__file__).parents[2] / "data" / "fuzz"
#: Between the objects of a tree in one input; a key is the first line of each.
_NEXT = b"\n====\n"
#: Chunks that are decoded have so many bytes.
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser.

    Attributes
    ----------
    run
        Parses, and looks at all that came of it; raises errors of ours, or those of `errors`.
    seeds
        Good inputs.
    errors
        What else it may raise, because whoever calls it waits for that.
    share
        Of the time for all of them.
    most
        Bytes of an input.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    errors: tuple[type[Exception], ...] = ()
    share: int = 1
    most: int = 4096


def check(name: str, data: bytes) -> NCZarrError | Exception | None:
    """Run a parser; return the error it may raise, or None. Any other error gets out."""
    parser = PARSERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parser.run(data)
        except NCZarrError as error:
            assert error.object
            assert error.reason
            return error
        except parser.errors as error:
            return error
    return None


def kept(name: str) -> list[bytes]:
    """Return the inputs of a parser that are kept, one archive for each parser."""
    path = CORPUS / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(entry) for entry in archive.infolist()]


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a parser that are kept."""
    with zipfile.ZipFile(CORPUS / f"{name}.zip", "w") as archive:
        for data in inputs:
            entry = zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:12])
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


def _told(found: object) -> None:
    """Raise a result that is an error."""
    if isinstance(found, NCZarrError):
        raise found


# -- files ---------------------------------------------------------------------------------------


def _file(data: bytes) -> None:
    """Parse a file and read its variables, without checksums, which would end most tries.

    What libhdf5 reads, and fragments in other files, are left out.
    """

    def left_out(*_: Any) -> Any:
        raise UnsupportedError("variable", "is read by others")

    with (
        filepromises.verifying(lambda *_: None),
        mock.patch.object(H5pyArray, "selections", left_out),
        mock.patch.object(FragmentArray, "selections", left_out),
    ):
        _told(filepromises.read_all(data))


def _small_files(most: int, make: Callable[[Path], None]) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory))
        for path in sorted(Path(directory).glob("*.nc")):
            if path.stat().st_size <= most:
                yield path.read_bytes()


def _masters(most: int, *magics: bytes) -> Iterator[bytes]:
    """Yield masters of aggregations that other programs wrote."""
    for path in sorted((CORPUS.parent / "cfa-vectors").glob("*/*.nc*")):
        data = path.read_bytes()
        if data.startswith(magics) and len(data) <= most and re.search(b"cfa_|aggregated_", data):
            yield data


def _classic_seeds() -> Iterator[bytes]:
    def make(directory: Path) -> None:
        for number, (content, version) in enumerate(classic_corpus.CORPUS):
            classic_corpus.make(content, version, directory / f"{number}.nc")

    yield from _small_files(2048, make)
    yield from _masters(4096, b"CDF")


def _hdf5_seeds() -> Iterator[bytes]:
    def make(directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in hdf5_corpus.CASES:
                hdf5_corpus.write(name, directory)
        filepromises._write_indexes(directory / "indexes.nc")

    yield from _small_files(24_000, make)
    yield from _masters(24_000, b"\x89HDF")


# -- trees ---------------------------------------------------------------------------------------


def packed(objects: Mapping[str, bytes]) -> bytes:
    """Make one input of a tree."""
    return _NEXT.join(key.encode() + b"\n" + data for key, data in objects.items())


def _tree(data: bytes) -> None:
    objects = {}
    for block in data.split(_NEXT):
        key, _, content = block.partition(b"\n")
        objects[key.decode(errors="replace")] = content
    found = promises.read_all(objects)
    _told(found)


def _first_array(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Keep the root and one array of a tree, so that inputs are small."""
    arrays = sorted(key.rpartition("/")[0] for key in objects if key.endswith(("/.zarray",)))
    return {
        key: data
        for key, data in objects.items()
        if key.count("/") == 0 or (arrays and key.startswith(f"{arrays[0]}/"))
    }


def _nczarr_seeds() -> Iterator[bytes]:
    for name in samples.DATASETS:
        if name not in ("codecs", "v3"):
            objects = samples.vector(name)
            yield packed(objects)
            yield packed(_first_array(objects))


def _zarr3_seeds() -> Iterator[bytes]:
    objects = samples.zarr3()
    yield packed(objects)
    for name in ("blosc", "gzip", "raw", "shard", "g"):
        yield packed({k: v for k, v in objects.items() if k.startswith((name, "zarr.json"))})


def _archive(data: bytes) -> None:
    archive = zipformat.answer(
        zipformat.read_archive("archive", len(data)), lambda start, stop: data[start:stop]
    )
    assert archive.digest()
    assert isinstance(archive.children, dict)
    problems = []
    for key in archive.members:
        for part, whole in ((ALL, True), (ALL, False), (slice(1, 5), False)):
            plan = archive.read(key, part, 1 << 20, whole=whole)
            try:
                zipformat.answer(plan, lambda start, stop: data[start:stop])
            except NCZarrError as error:
                problems.append(error)
    if problems:
        raise problems[0]


def _archive_seeds() -> Iterator[bytes]:
    for prefix in ("", "tree/"):
        for method in (0, 8, 12, 14):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as archive:
                archive.writestr(f"{prefix}.zgroup", b'{"zarr_format": 2}')
                archive.writestr(f"{prefix}v/0", bytes(50))
            yield file.getvalue()


# -- documents -----------------------------------------------------------------------------------


def _json(data: bytes) -> None:
    value = jsontext.loads(data, "key")
    again = jsontext.loads(jsontext.dumps(value).encode(errors="surrogateescape"), "key")
    assert jsontext.same(value, again) or "NaN" in jsontext.dumps(value)


def _json_seeds() -> Iterator[bytes]:
    yield from (
        b'{"a": [1, -2.5e3, true, null, "x\\u00e9\\n"], "b": {}}',
        b"{'a': 'it\\'s', 'b': NaN, 'c': -Infinity}",
        b'[00012, 1e400, 123456789012345678901234567890, "\\ud800"]',
        b'{"a": 1, "a": 2,}',
    )
    for name in ("dims-nczarr+file-4.8.0", "strings-nczarr+file-4.10.1"):
        yield from (
            data
            for key, data in samples.vector(name).items()
            if "z" in key[-8:] and len(data) < 900
        )


def _references(references: References, keys: Iterable[str]) -> None:
    problems: list[NCZarrError] = []
    for prefix in ("", "v"):
        references.names(prefix)
    list(references.addresses())
    list(references.files())
    for key in keys:
        try:
            references.find(key)
        except NCZarrError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def _json_references(data: bytes) -> None:
    found = JSONReferences.parse(data, "references")
    _references(found, [*found.refs][:50])


_KERCHUNK: tuple[Any, ...] = (
    {".zgroup": "{}", "v/0": ["s3://b/x", 0, 5], "v/1": ["x"], "v/2": "base64:AAAA", "v/3": "x"},
    {"version": 1, "templates": {"u": "s3://b", "f": "x.nc"}, "refs": {
        "v/.zarray": {"a": 1}, "v/0": ["{{u}}/x", 4, 5], "v/1": ["{{f(c='text')}}", 1, 2]}},
)  # fmt: skip


def _json_reference_seeds() -> Iterator[bytes]:
    return (json.dumps(one).encode() for one in _KERCHUNK)


def _folder(data: bytes) -> None:
    """Parse ``.zmetadata`` of a folder of references, or what follows its name: a file of rows."""
    if not data.startswith(b"PAR1"):
        found = FolderReferences.parse(data, "folder")
        keys = [f"{key.rpartition('/')[0]}/{name}" for key in found.documents for name in "01"]
        _references(found, [".zmetadata", *found.documents, *keys, "v/1.1"][:50])
        return
    rows = Rows.parse(data, "rows")
    for number in range(-1, min(len(rows.codes), 20) + 1):
        if number >= 0:
            rows.find(number, "rows")


def _folder_seeds() -> Iterator[bytes]:
    arrays = {
        "v/.zarray": {"shape": [4, 6], "chunks": [2, 2]},
        "a/b/.zarray": {"shape": [], "chunks": []},
    }
    yield json.dumps({"record_size": 2, "metadata": {".zgroup": {}, **arrays}}).encode()
    import pyarrow as pa
    from pyarrow import parquet

    for compression in ("none", "zstd"):
        columns = {
            "path": ["s3://b/x", None],
            "offset": [0, 5],
            "size": [4, 3],
            "raw": [None, b"x"],
        }
        file = pa.BufferOutputStream()
        parquet.write_table(pa.table(columns), file, compression=compression)
        yield file.getvalue().to_pybytes()


def _aggregation(data: bytes) -> None:
    """Decode the table of an aggregation variable: attributes, and the values of its terms."""
    try:
        hierarchy, values = _hierarchy(json.loads(data))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return  # no document of this test
    except (StopIteration, SyntaxError):  # no type of netCDF, or of numpy
        return
    found = find_aggregations(hierarchy)
    if any(term.path not in values for one in found for term in one.terms.values()):
        return  # a reader would have its values
    decoded = decode(hierarchy, found, values)
    for _, array in aggregated(decoded):
        aggregations.grid_is_sound(array)
        for number in range(min(array.fragments.count, 20)):
            array.fragments.extent(number)
            array.fragments.places(number)
    for variable in decoded.root.variables.values():
        _told(variable.error)


def _hierarchy(given: Any) -> tuple[Hierarchy, dict[str, np.ndarray]]:
    dimensions = {key: Dimension(key, int(size)) for key, size in given["dimensions"].items()}
    if not all(0 <= one.size < 1 << 40 for one in dimensions.values()):
        raise ValueError("no sizes")
    variables, values = {}, {}
    for name, one in given["variables"].items():
        own = tuple(dimensions[key] for key in one["dimensions"])
        flat = one.get("values", [])
        text = one["dtype"] == "string"
        dtype = np.dtype(object) if text else np.dtype(one["dtype"])
        attributes = {k: aggregations.attribute_of(k, v) for k, v in one["attributes"].items()}
        kind = "string" if text else aggregations.nc_type_of(dtype)
        variables[name] = Variable(name, "/", own, kind, dtype, attributes)
        if "values" in one:
            shape = tuple(dimension.size for dimension in own)
            values[f"/{name}"] = np.array(flat, dtype).reshape(shape)
    return Hierarchy(Group("/", dimensions, {}, variables), "hdf5"), values


def _plain(value: Any) -> Any:
    return value.tolist()


def _aggregation_seeds() -> Iterator[bytes]:
    def listed(*found: Any) -> np.ndarray:
        column = np.empty(len(found), object)
        column[:] = found
        return column

    edges = (np.array([0, 2]), np.array([2, 5]))
    fragments = Fragments(
        (edges[0], np.array([0])), (edges[1], np.array([3])),
        listed("a.nc", "/b/c.nc"), listed("tas", "tas"), listed("nc", "nc"),
    )  # fmt: skip
    lengths = (("time", 5), ("lat", 3))
    for dialect in WRITABLE:
        encoded = dialect.encode("tas", lengths, fragments)
        sizes = dict(lengths) | {k: n for term in encoded.terms for k, n in term.dimensions}
        variables: dict[str, Any] = {
            "tas": {"dimensions": [], "dtype": "f4", "attributes": dict(encoded.attributes)}
        }
        for term in encoded.terms:
            text = term.values.dtype == object
            variables[term.path] = {
                "dimensions": [key for key, _ in term.dimensions],
                "dtype": "string" if text else term.values.dtype.str,
                "attributes": dict(term.attributes),
                "values": term.values.reshape(-1).tolist(),
            }
        yield json.dumps({"dimensions": sizes, "variables": variables}, default=_plain).encode()


def _notes(data: bytes) -> None:
    """Parse what writers of a dataset leave in it."""
    Incomplete.parse(data).error("dataset")
    Owner.parse(parse_json(data))
    writer_of(data.decode(errors="replace"))
    journal = Journal.parse(data, "dataset")
    assert Journal.parse(journal.dump(), "dataset").staged == journal.staged


def _notes_seeds() -> Iterator[bytes]:
    owner = Owner.here()
    yield Incomplete(owner, {"v": 4}, "x", {"v": "v/3"}).dump()
    yield Journal("abc", owner, ("v/.zarray", "v/0"), ("w/0",)).dump()


# -- texts ---------------------------------------------------------------------------------------


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _url(data: bytes) -> None:
    text = _text(data)
    redact(text)
    hint(text)
    url = parse_url(text)
    assert parse_url(text) == url
    repr(url)


_URLS = (
    b"https://user:pass@h:8080/a/b?x=1#mode=nczarr,s3&aws.profile=p",
    b"s3://bucket/key#mode=zarr,consolidated", b"gs3://b/k", b"file:///tmp/x.zip#mode=zip",
    b"https://b.s3.us-east-1.amazonaws.com/k", b"https://storage.googleapis.com/b/k",
    b"simplecache::https://h/x.nc#bytes", b"zip://x::s3://b/k", b"http://[::1]:80/x%20y",
    b"https://h/thredds/dodsC/x.nc.dds", b"file://C:/x", b"https://1.2.3.4/b/k#gs3&aws.region=r",
)  # fmt: skip


def _address(data: bytes) -> None:
    """Find out what an address in a master names, for masters in several places."""
    address, _, master = _text(data).partition("\n")
    is_absolute(address)
    base = parse_address(master) if master else None
    for shown in ("one", "other"):
        with contextlib.suppress(URLError):
            parse_address(address)
        repr(locate(address, base, shown))


_ADDRESSES = (
    b"../x.nc\nhttps://h/a/b/c.nc", b"a/./b.nc\ns3://b/k/x.nc", b"//h/x\nhttps://g/x",
    b"file:///x/y%20z\n/a/b", b"s3://b/../x#mode=zarr\nhttps://h:9000/b/y#s3", b"a.nc\n/tmp/x",
    b"https://h/%2e%2e/x?q\n", b"zip://x::https://h/y\nzip://x::https://h/z", b"C:\\x\n", b"\n",
)  # fmt: skip


def _rc(data: bytes) -> None:
    entries = parse_rc(_text(data))
    for url in _urls():
        lookup(entries, "HTTP.TIMEOUT", url)
    find(entries, "AWS.PROFILE", [("h:80", "/a")])
    repr(entries)


@cache
def _urls() -> list[Any]:
    return [parse_url(text) for text in ("https://h:80/a/b", "s3://b/k")]


def _netrc(data: bytes) -> None:
    with _as_file(data) as path:
        header = Logins(netrc_file=path).header(URL("https://h/x"), own=True, clear=False)
        _now(header)


def _cookies(data: bytes) -> None:
    with _as_file(data) as path:
        Cookies(file=path).header(URL("https://h/x"))


def _profiles(data: bytes) -> None:
    from nczarr_fsspec.transport.options import read_profiles

    named = {"AWS_CONFIG_FILE": "", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    with _as_file(data) as path, mock.patch.dict(os.environ, {**named, "AWS_CONFIG_FILE": path}):
        dict(read_profiles())


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    number, path = tempfile.mkstemp()
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        yield path
    finally:
        os.unlink(path)


def _size(data: bytes) -> None:
    parse_size(_text(data))


def _units(data: bytes) -> None:
    words = _text(data).split("\n")
    own, calendar, wanted, other = (*words, "", "", "", "")[:4]
    convert = conversion(own, calendar or None, wanted, other or None)
    if convert is not None:
        convert(np.array([1.0, 2.0]))


# -- answers of servers --------------------------------------------------------------------------


class _Response:
    """An answer: its status, a line for each header, and a body."""

    reason = "because"

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status) if status.isdecimal() and len(status) == 3 else 206
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().title(): value.strip() for name, _, value in pairs}
        if "Etag" in self.headers:
            self.headers["ETag"] = self.headers.pop("Etag")
        self.content_length = None if "Chunked" in self.headers else len(self.body)
        self.url = URL("https://h/x")

    @property
    def content(self) -> _Response:
        return self

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "")

    async def iter_any(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.body), 100):
            yield self.body[start : start + 100]

    def close(self) -> None:
        pass


def _answer(data: bytes) -> None:
    old = FileVersion('"tag"', "", 20)
    problems: list[Exception] = []
    for more in (
        {"extents": (Extent(0, 5),)},
        {"extents": (Extent(2, 5), Extent(9, 12)), "version": old},
        {"tail": 4},
        {"most": 1000, "version": old},
    ):
        request = Request("https://h/x", "https://h/x", **more)
        try:
            found = _now(read_answer(_Response(data), Clock(Timeout()), request))
        except (NCZarrError, TransientError) as error:
            problems.append(error)
        else:
            assert found is None or found.version.validator is not None
    if problems:
        raise problems[0]


def _now(coroutine: Any) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


_PARTS = (
    b"--b\r\nContent-Range: bytes 2-4/20\r\n\r\nabc\r\n"
    b"--b\r\nContent-Range: bytes 9-11/20\r\n\r\ndef\r\n--b--\r\n"
)
_ANSWERS = (
    b'206\r\nContent-Range: bytes 0-4/20\r\nETag: "tag"\r\n\r\nabcde',
    b"206\r\nContent-Type: multipart/byteranges; boundary=b\r\n\r\n" + _PARTS,
    (
        b"206\r\nContent-Range: bytes 16-19/20\r\nLast-Modified: Mon, 02 Jan 2006 15:04:05 GMT\r\n"
        b"Date: Tue, 03 Jan 2006 15:04:05 GMT\r\n\r\nabcd"
    ),
    b"200\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0",
    b"416\r\nContent-Range: bytes */3\r\n\r\n",
    b"503\r\nRetry-After: Mon, 02 Jan 2006 15:04:05 GMT\r\n\r\n",
    b"429\r\nRetry-After: 5\r\n\r\n",
    b"200\r\nChunked: 1\r\n\r\nabcdefghij",
)


# -- chunks --------------------------------------------------------------------------------------

_CHAINS: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    *(("<i4", chain) for chain in samples.I4_CODECS.values()),
    *(("|O", chain) for chain in samples.TEXT_CODECS.values()),
)
#: Chains that only HDF5 has, for which no encoder is here.
_HDF5_CHAINS: tuple[dict[str, Any], ...] = (
    {"id": "hdf5-lzf"},
    {"id": "hdf5-lz4"},
    {"id": "hdf5-nbit", "values": [8, 0, 64, 1, 4, 0, 10, 3]},
    {"id": "hdf5-scaleoffset", "values": [2, 0, 64, 0, 4, 0, 0, 1, 0, 0]},
    {"id": "shuffle", "elementsize": 4},
)


class _Filtered(ChunkedArray):
    """An array whose chunks went through filters of HDF5."""

    @property
    def codec_words(self) -> Literal["zarr2", "zarr3", "hdf5"]:
        return "hdf5"


@cache
def _decoders() -> list[Decoder]:
    arrays = [
        *(ChunkedArray("v", (64,), (64,), np.dtype(one), codecs=chain) for one, chain in _CHAINS),
        *(_Filtered("v", (64,), (64,), np.dtype("<i4"), codecs=(one,)) for one in _HDF5_CHAINS),
    ]
    return [Decoder(array, 0) for array in arrays]


def _chunk(data: bytes) -> None:
    decoders = _decoders()
    if data:
        decoder = decoders[data[0] % len(decoders)]
        (found,) = decoder.decode([data[1:]], str)
        assert decoder.array.dtype == object or memoryview(found).nbytes == _CHUNK


def _chunk_seeds() -> Iterator[bytes]:
    numbers = np.arange(64, dtype="<i4")
    texts = np.array(["a", "b", "cc", "d"] * 16, dtype=object)
    for number, (dtype, chain) in enumerate(_CHAINS):
        yield bytes([number]) + samples.encoded(texts if dtype == "|O" else numbers, *chain)
    plain = numbers.tobytes()
    lzf = b"".join(b"\x1f" + plain[at : at + 32] for at in range(0, _CHUNK, 32))
    lz4 = struct.pack(">QII", _CHUNK, _CHUNK, _CHUNK) + plain
    for number, data in enumerate((lzf, lz4, bytes(100), struct.pack("<I", 8) + bytes(100), plain)):
        yield bytes([len(_CHAINS) + number]) + data


def _given(*texts: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: texts


PARSERS: dict[str, Parser] = {
    "address": Parser(_address, _given(*_ADDRESSES), share=2),
    "aggregation": Parser(_aggregation, _aggregation_seeds, share=5),
    "answer": Parser(_answer, _given(*_ANSWERS), (TransientError,), share=3),
    "archive": Parser(_archive, _archive_seeds, share=3),
    "chunk": Parser(_chunk, _chunk_seeds, share=3, most=1024),
    "classic": Parser(_file, _classic_seeds, share=5),
    "cookies": Parser(
        _cookies,
        _given(b"# Netscape HTTP Cookie File\nh\tFALSE\t/\tTRUE\t2000000000\tname\tvalue\n"),
    ),
    "folder": Parser(_folder, _folder_seeds, share=2),
    "hdf5": Parser(_file, _hdf5_seeds, share=14, most=24_000),
    "json": Parser(_json, _json_seeds, share=2),
    "nczarr": Parser(_tree, _nczarr_seeds, share=8, most=8192),
    "netrc": Parser(
        _netrc, _given(b"machine h login me password x\ndefault login a password b\n")
    ),
    "notes": Parser(_notes, _notes_seeds),
    "profiles": Parser(
        _profiles, _given(b"[default]\nregion = r\n[profile x]\ns3 =\n  a = b\n# c\n")
    ),
    "rc": Parser(
        _rc, _given(b"# c\nHTTP.TIMEOUT=5\n[https://h:80/a]HTTP.TIMEOUT=6\n[s3://b]AWS.PROFILE=x\n")
    ),
    "references": Parser(_json_references, _json_reference_seeds, share=4),
    "s3nc": Parser(
        lambda data: parse_config(_text(data), "config"),
        _given(
            b'{"version": "9", "hosts": {"s3://t": {"alias": "t", "url": "http://h:9000", '
            b'"credentials": {"accessKey": "a", "secretKey": "b"}, "api": "S3v4",}}, '
            b'"cache_location": "~/c", "max_cache_size": "2GB", "read_threads": 4,}'
        ),
    ),
    "size": Parser(_size, _given(b"1.5 GiB", b"100MB", b"7")),
    "units": Parser(
        _units,
        _given(
            b"days since 2000-01-01\nnoleap\nhours since 1999-1-1 6:00\n365_day",
            *(b"K\n\ndegC\n", b"m s-1\n\nkm/h\n"),
            b"days since 1970-1-1\n\ndays since 1971-1-1\ngregorian",
        ),
        (ValueError,),
    ),
    "url": Parser(_url, _given(*_URLS), share=3),
    "zarr3": Parser(_tree, _zarr3_seeds, share=4, most=8192),
}  # fmt: skip
