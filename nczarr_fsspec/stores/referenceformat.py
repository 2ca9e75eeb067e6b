"""Kerchunk references as JSON: keys with their bytes, or with an extent of another file.

Versions 0 and 1 of kerchunk's specification. This module does no I/O. References were written by
someone else: each one is checked when it is looked up, for there may be millions of them.

Kerchunk takes texts like ``{{u}}``, ``{{f(c='text')}}`` and ``{{(i + 1) * 1000}}`` for templates of
Jinja, which is a language in which a text of a line can take all memory. What references need of it
are names, integers, strings, ``+ - * // %``, and calls of other templates. Nothing else is
evaluated, and all that is evaluated is bounded.
"""

from __future__ import annotations

import ast
import base64
import itertools
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError, UnsupportedError
from nczarr_fsspec.keystore import ZARR_METADATA

#: The document at the root of a folder of references in Parquet.
CONSOLIDATED = ".zmetadata"
#: Bytes of a file of JSON at most: a million references take about a hundred million.
MAX_JSON = 1 << 29
#: References that generators may make, and characters of these.
MAX_GENERATED = 1 << 20
_MAX_GENERATED_TEXT = 1 << 28
#: No file is as long as this.
_BEYOND = 1 << 63
_BASE64 = "base64:"


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
    """Finds what keys refer to. Shared by the stores of one set of references; never changed."""

    __slots__ = ("__weakref__",)

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
    """

    __slots__ = ("_addresses", "_refs", "_shown", "_sorted", "_templates")

    def __init__(self, refs: Mapping[str, Any], templates: Templates, shown: str) -> None:
        self._refs = refs
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
            return cls(document, Templates(), shown)
        version = document.get("version", 1)
        if version != 1 or isinstance(version, bool):
            raise UnsupportedError(
                shown, f"are references of version {version!r:.40}; 0 and 1 can be read"
            )
        refs = document.get("refs", {})
        texts = document.get("templates", {})
        generators = document.get("gen", [])
        _expect(isinstance(refs, Mapping), shown, "'refs'", "an object")
        _expect(isinstance(generators, list), shown, "'gen'", "a list")
        _expect(
            isinstance(texts, Mapping) and all(isinstance(text, str) for text in texts.values()),
            shown,
            "'templates'",
            "an object of texts",
        )
        templates = Templates(texts, shown)
        if generators:
            refs = {**refs, **_generated(generators, templates)}
        return cls(refs, templates, shown)

    def find(self, key: str) -> bytes | Part | None:
        value = self._refs.get(key)
        if value is None and key.endswith("/0"):
            value = self._refs.get(key[:-1])  # so VirtualiZarr names the chunk of a scalar
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
                return part(*self._expanded(value))
            except FormatError as error:
                raise StoreError(self._named(key), error.reason) from None
            except (TypeError, ValueError):
                pass
        raise StoreError(
            self._named(key),
            f"is {json.dumps(value, default=repr):.80}, which is no reference: a text, [url] or "
            "[url, offset, size] is",
        )

    def _expanded(self, value: Sequence[Any]) -> Sequence[Any]:
        address = value[0] if value else None
        if isinstance(address, str) and "{{" in address and self._templates.texts:
            return (self._templates.expand(address), *value[1:])
        return value

    def names(self, prefix: str) -> frozenset[str]:
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(key for key in self._refs if isinstance(key, str))
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
                yield self._templates.expand(address) if self._templates.texts else address
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
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):  # NumPy's do
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


def _generated(generators: Sequence[Any], templates: Templates) -> dict[str, list[Any]]:
    """Return the references that generators make; `FormatError` if these are too many."""
    found: dict[str, list[Any]] = {}
    left, characters = MAX_GENERATED, 0
    for generator in generators:
        shown = f"{templates.shown}: generator {json.dumps(generator, default=repr):.80}"
        _expect(isinstance(generator, Mapping), shown, "it", "an object")
        dimensions = generator.get("dimensions")
        _expect(isinstance(dimensions, Mapping), shown, "'dimensions'", "an object")
        ranges = {name: _dimension(given, shown) for name, given in dimensions.items()}
        count = 1
        for values in ranges.values():
            count *= len(values)
        left -= count
        if left < 0:
            raise FormatError(
                shown, f"makes too many references; all generators may make {MAX_GENERATED}"
            )
        key, url = (_text(generator, name, shown) for name in ("key", "url"))
        extent = [name for name in ("offset", "length") if name in generator]
        _expect(len(extent) != 1, shown, "'offset' and 'length'", "given both or neither")
        numbers = [_text(generator, name, shown) for name in extent]
        for values in itertools.product(*ranges.values()):
            names = dict(zip(ranges, values, strict=True))
            made = templates.expand(key, names)
            address = templates.expand(url, names)
            characters += len(made) + len(address)
            if characters > _MAX_GENERATED_TEXT:
                raise FormatError(shown, "makes too much text")
            try:
                found[made] = [address, *(int(templates.expand(text, names)) for text in numbers)]
            except ValueError:
                raise FormatError(shown, "makes an offset or a length that is no integer") from None
    return found


def _dimension(given: object, shown: str) -> Sequence[Any]:
    if isinstance(given, list):
        good = all(isinstance(one, (str, int)) and not isinstance(one, bool) for one in given)
        _expect(good, shown, "a dimension", "a list of integers or texts")
        _expect(all(len(str(one)) <= MAX_TEXT for one in given), shown, "a dimension", "short")
        return given
    _expect(isinstance(given, Mapping), shown, "a dimension", "a list or an object")
    assert isinstance(given, Mapping)
    bounds = [given.get("start", 0), given.get("stop"), given.get("step", 1)]
    good = all(type(bound) is int and abs(bound) < _BEYOND >> 1 for bound in bounds)
    _expect(good and bounds[2] != 0, shown, "a dimension", "start, stop and step, integers")
    values = range(*bounds)
    _expect(
        abs((bounds[1] - bounds[0]) // bounds[2]) <= MAX_GENERATED,
        shown,
        "a dimension",
        f"no longer than {MAX_GENERATED}",
    )
    return values


def _text(generator: Mapping[str, Any], name: str, shown: str) -> str:
    value = generator.get(name)
    if type(value) is int and name in ("offset", "length"):
        return str(value)
    _expect(isinstance(value, str), shown, repr(name), "a text")
    return str(value)


def _expect(good: bool, shown: str, what: str, kind: str) -> None:
    if not good:
        raise FormatError(shown, f"{what} has to be {kind} in kerchunk references")


def _no_references(shown: str) -> FormatError:
    return FormatError(
        shown,
        'is JSON, but holds no kerchunk references: neither {"version": 1, "refs": {...}} nor keys '
        "of Zarr with their texts",
    )


Value: TypeAlias = int | str

#: Characters of an expanded text, and of one expression, at most.
MAX_TEXT = 1 << 14
_MAX_EXPRESSION = 500
_MAX_NUMBER = 1 << 63
_MOST_REMEMBERED = 1 << 10
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
#: what an expression may have; no backslash, for instance
_ALLOWED = re.compile(r"""[\w\s+\-*/%().,='":@~]*""")
_FORMAT = re.compile(r"[^%]*%0?\d{0,2}[ds][^%]*")


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of one set of references.

    Parameters
    ----------
    texts
        By name.
    shown
        How messages name the references.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    shown: str = "references"
    _known: dict[str, Template] = field(default_factory=dict, repr=False, compare=False)

    def expand(self, text: str, values: Mapping[str, Value] | None = None) -> str:
        """Return a text with its expressions evaluated.

        Parameters
        ----------
        values
            Names besides those of the templates.

        Raises
        ------
        FormatError
            If an expression cannot be understood, or becomes too long.
        """
        if "{{" not in text:
            return text
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[text] = Template.parse(text, self.shown)
        return known.render(self.texts if values is None else {**self.texts, **values}, self)


@dataclass(frozen=True, slots=True)
class Template:
    """A text with expressions, taken apart; `parts` are texts and expressions in turn."""

    text: str
    parts: Sequence[str | ast.expr]

    @classmethod
    def parse(cls, text: str, shown: str) -> Template:
        """Take a text apart; `FormatError` if it is no template."""
        pieces = _EXPRESSION.split(text)
        parts: list[str | ast.expr] = []
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                parts.append(piece)
                continue
            if len(piece) > _MAX_EXPRESSION or not _ALLOWED.fullmatch(piece):
                raise _not_understood(shown, piece)
            try:
                parts.append(ast.parse(piece.strip(), mode="eval").body)
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                raise _not_understood(shown, piece) from None
        return cls(text, parts)

    def render(self, names: Mapping[str, Value], templates: Templates) -> str:
        """Evaluate the expressions; errors as `Templates.expand`."""
        rendered = "".join(
            part if isinstance(part, str) else str(self._value(part, names, templates))
            for part in self.parts
        )
        if len(rendered) > MAX_TEXT:
            raise FormatError(templates.shown, f"template {self.text!r:.80} becomes too long")
        return rendered

    def _value(self, node: ast.expr, names: Mapping[str, Value], templates: Templates) -> Value:
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | str() as value):
                return _bounded(value, templates.shown)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name):
                raise FormatError(templates.shown, f"template {self.text!r:.80} names no {name!r}")
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = self._value(inner, names, templates)
                if isinstance(value, int):
                    return -value
            case ast.BinOp(left=left, op=op, right=right):
                one = self._value(left, names, templates)
                other = self._value(right, names, templates)
                result = _combined(one, op, other)
                if result is not None:
                    return _bounded(result, templates.shown)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=given) if (
                name in templates.texts
            ):
                arguments: dict[str, Value] = {}
                for one_given in given:
                    if one_given.arg is None:
                        raise _not_understood(templates.shown, self.text)
                    arguments[one_given.arg] = self._value(one_given.value, names, templates)
                # only the arguments are known inside: templates cannot call each other in circles
                inside = Templates({}, templates.shown)
                return Template.parse(templates.texts[name], templates.shown).render(
                    arguments, inside
                )
        raise _not_understood(templates.shown, self.text)


def _combined(one: Value, op: ast.operator, other: Value) -> Value | None:
    """Return what an operator makes of two values; None if it does not know these."""
    if isinstance(one, str):
        if isinstance(op, ast.Add) and isinstance(other, str):
            return one + other
        if isinstance(op, ast.Mod) and _FORMAT.fullmatch(one):
            try:
                return one % (other,)
            except TypeError:
                return None
        return None
    if isinstance(other, str):
        return None
    match op:
        case ast.Add():
            return one + other
        case ast.Sub():
            return one - other
        case ast.Mult():
            return one * other
        case ast.FloorDiv() if other:
            return one // other
        case ast.Mod() if other:
            return one % other
    return None


def _bounded(value: Value, shown: str) -> Value:
    within = len(value) <= MAX_TEXT if isinstance(value, str) else abs(value) < _MAX_NUMBER
    if not within:
        raise FormatError(shown, "a template has a number or a text that is too large")
    return value


def _not_understood(shown: str, text: str) -> FormatError:
    return FormatError(
        shown,
        f"template {text!r:.80} is not understood; names, integers, strings, + - * // % and "
        "calls of other templates are",
    )
