"""Kerchunk references as JSON: keys with their bytes, or with an extent of another file.

Versions 0 and 1 of kerchunk's specification. This module does no I/O. References were written by
someone else: each one is checked when it is looked up, for there may be millions of them.

Of the templates that the specification has, ``{{name}}`` is understood, which is all that kerchunk
writes; what else it may have is a language, Jinja, in which a text of a line can take all memory.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError, UnsupportedError
from nczarr_fsspec.keystore import ZARR_METADATA
from nczarr_fsspec.transport.request import Stamp

#: The document at the root of a folder of references in Parquet.
CONSOLIDATED = ".zmetadata"
#: Bytes of a file of JSON at most: a million references take about a hundred million.
MAX_JSON = 1 << 29
#: Characters of an address, when its templates are expanded.
MAX_ADDRESS = 1 << 14
_TEMPLATE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
#: No file is as long as this.
_BEYOND = 1 << 63
_BASE64 = "base64:"
#: A key beside those of kerchunk, by address the size and the number of a `Stamp`.
VERSIONS = "nczarr_versions"


class Part(NamedTuple):
    """An extent of another file.

    Attributes
    ----------
    address
        As the references have it.
    start, stop
        In bytes; no `stop` is the end of the file.
    """

    address: str
    start: int = 0
    stop: int | None = None

    @property
    def size(self) -> int | None:
        """Of its bytes; None if that is not known."""
        return None if self.stop is None else self.stop - self.start


class Row(NamedTuple):
    """Where the reference of a key is: a row of a file of references."""

    file: str
    number: int


Found: TypeAlias = bytes | Part | Row | None


class References(ABC):
    """Finds what keys refer to. Shared by the stores of one set of references; never changed.

    Attributes
    ----------
    versions
        Which versions of files are meant, by address, as far as that is known.
    """

    __slots__ = ("__weakref__", "versions")

    versions: Mapping[str, Stamp]

    @abstractmethod
    def find(self, key: str) -> Found:
        """Return the bytes of a key, or where they are; None if there is no such key.

        Raises
        ------
        StoreError
            If its reference makes no sense.
        """

    @abstractmethod
    def names(self, prefix: str) -> frozenset[str] | None:
        """Return the names directly below a prefix; None if that is not known."""

    @abstractmethod
    def addresses(self) -> Iterable[str]:
        """Return the addresses of all files that are known without reading more."""

    @abstractmethod
    def files(self) -> Iterable[str]:
        """Return files of references in which more addresses are."""


class JSONReferences(References):
    """References that are all in one mapping.

    Parameters
    ----------
    refs
        By key: text, ``"base64:..."``, a document, ``[address]`` or ``[address, offset, size]``.
    templates
        For the addresses.
    shown
        How messages name the references.
    versions
        As of `References`.
    """

    __slots__ = ("_addresses", "_shown", "_sorted", "_templates", "refs")

    def __init__(
        self,
        refs: Mapping[str, Any],
        templates: Mapping[str, str],
        shown: str,
        versions: Mapping[str, Stamp],
    ) -> None:
        self.refs = refs
        self.versions = versions
        self._templates = templates
        self._shown = shown
        self._sorted: list[str] | None = None
        self._addresses = _one_object_each(refs)

    @classmethod
    def parse(cls, text: bytes | memoryview, shown: str) -> JSONReferences:
        """Read a file of JSON.

        Raises
        ------
        FormatError
            If it holds no references.
        """
        try:
            document = json.loads(bytes(text))
        except (ValueError, RecursionError) as error:
            reason = f"is no JSON: {error}; kerchunk references are expected in text like this"
            raise FormatError(shown, reason) from None
        return cls.of(document, shown)

    @classmethod
    def of(cls, document: object, shown: str) -> JSONReferences:
        """Take references that were read already; errors as `parse`."""
        if not isinstance(document, Mapping):
            raise _no_references(shown)
        if "refs" not in document and "version" not in document:
            if not is_version_0(document):
                raise _no_references(shown)
            return cls(document, {}, shown, {})
        version = document.get("version", 1)
        if version != 1 or isinstance(version, bool):
            raise UnsupportedError(
                shown, f"are references of version {version!r:.40}; 0 and 1 can be read"
            )
        refs = document.get("refs", {})
        texts = document.get("templates", {})
        _expect(isinstance(refs, Mapping), shown, "'refs'", "an object")
        _expect(
            isinstance(texts, Mapping) and all(isinstance(text, str) for text in texts.values()),
            shown,
            "'templates'",
            "an object of texts",
        )
        if document.get("gen"):
            raise UnsupportedError(
                shown,
                "have generators ('gen'), which are not read: fsspec makes references of them "
                "(fsspec.filesystem('reference', fo=...).references), and that can be opened",
            )
        return cls(refs, texts, shown, versions_in(document, shown))

    def find(self, key: str) -> bytes | Part | None:
        value = self.refs.get(key)
        if value is None and key.endswith("/0"):
            value = self.refs.get(key[:-1])  # so VirtualiZarr names the chunk of a scalar
        if value is None:
            return None
        if isinstance(value, str):
            return _inline(value, self._named(key))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, Mapping):
            return json.dumps(value).encode()
        if isinstance(value, (list, tuple)):
            try:
                if value and isinstance(value[0], str):
                    value = (self._expand(value[0]), *value[1:])
                return part(*value)
            except FormatError as error:
                raise StoreError(self._named(key), error.reason) from None
            except (TypeError, ValueError):
                pass
        raise StoreError(
            self._named(key),
            f"is {json.dumps(value, default=repr):.80}, which is no reference: a text, [url] or "
            "[url, offset, size] is",
        )

    def _expand(self, address: str) -> str:
        """Return an address with texts in place of its templates."""
        if not self._templates or "{{" not in address:
            return address
        expanded = ""
        for number, piece in enumerate(_TEMPLATE.split(address)):
            text = self._templates.get(piece.strip()) if number % 2 else piece
            if text is None:
                reason = f"template {piece!r:.80} is not understood: only names of templates are"
                raise FormatError(self._shown, reason)
            if len(expanded) + len(text) > MAX_ADDRESS:
                raise FormatError(self._shown, f"template {address!r:.80} becomes too long")
            expanded += text
        return expanded

    def names(self, prefix: str) -> frozenset[str]:
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(key for key in self.refs if isinstance(key, str))
        begin = f"{prefix}/" if prefix else ""
        found: set[str] = set()
        at = bisect_left(keys, begin)
        while at < len(keys) and keys[at].startswith(begin):
            name, slash, _ = keys[at][len(begin) :].partition("/")
            found.add(name)
            # "0" follows "/": all keys below a name are passed over at once
            at = bisect_left(keys, f"{begin}{name}0", at) if slash else at + 1
        return frozenset(found - {""})

    def addresses(self) -> Iterable[str]:
        for address in self._addresses:
            try:
                yield self._expand(address)
            except NCZarrError:
                continue  # an error where it is used

    def files(self) -> Iterable[str]:
        return ()

    def _named(self, key: str) -> str:
        return f"{self._shown}: reference {key!r}"


def is_version_0(document: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping has a root document of Zarr as text."""
    root = ZARR_METADATA.intersection(document)
    return bool(root) and all(isinstance(document.get(key), (str, Mapping)) for key in root)


def versions_in(document: Mapping[str, Any], shown: str) -> dict[str, Stamp]:
    """Return which versions of files a document of references is about; `FormatError` if none."""
    try:
        stated = document.get(VERSIONS, {}).items()
        return {str(file): Stamp(int(size), int(number)) for file, (size, number) in stated}
    except (AttributeError, TypeError, ValueError):
        raise FormatError(shown, f"{VERSIONS!r} has to be an object of [size, number]") from None


def part(address: object, offset: object = 0, size: object = None) -> Part:
    """Return a checked reference; `ValueError` or `TypeError` if it makes no sense."""
    if not isinstance(address, str) or not address:
        raise ValueError(address)
    offset = _integer(offset)
    if not 0 <= offset < _BEYOND:
        raise ValueError(offset)
    if size is None:
        if offset:
            raise ValueError(size)
        return Part(address)
    size = _integer(size)
    if not 0 <= size < _BEYOND - offset:
        raise ValueError(size)
    return Part(address, offset, offset + size)


def _integer(value: object) -> int:
    if type(value) is int:
        return value
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    if truth or not isinstance(value, SupportsIndex):  # NumPy's do
        raise TypeError(value)
    return index(value)


def inline_text(data: bytes) -> str:
    """Return the text by which references hold bytes themselves, whatever these are."""
    return _BASE64 + base64.b64encode(data).decode("ascii")


def inline_bytes(text: str) -> bytes:
    """Return the bytes that references hold as a text.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    if text.startswith(_BASE64):
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    return text.encode()


def _inline(text: str, shown: str) -> bytes:
    try:
        return inline_bytes(text)
    except ValueError as error:
        raise StoreError(shown, f"is damaged: {error}") from None


def _one_object_each(refs: Mapping[str, Any]) -> dict[str, str]:
    """Let references to one file share the text of its address; return the addresses."""
    known: dict[str, str] = {}
    for value in refs.values():
        if type(value) is list and value and isinstance(value[0], str):
            value[0] = known.setdefault(value[0], value[0])
    return known


def _expect(good: bool, shown: str, what: str, kind: str) -> None:
    if not good:
        raise FormatError(shown, f"{what} has to be {kind} in kerchunk references")


def _no_references(shown: str) -> FormatError:
    return FormatError(
        shown,
        'is JSON, but holds no kerchunk references: neither {"version": 1, "refs": {...}} nor keys '
        "of Zarr with their texts",
    )
