"""What a comparison found, for programs, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.text import counted, format_size
from nczarr_xarray.tools.html import paragraphs, report, table

#: Attributes that say what a stored element stands for.
DECODING = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned")

#: Differing values of a variable that are kept.
SHOWN = 5
#: Differences that the text shows, and characters of a value.
_LINES, _COLUMNS = 50, 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two datasets, A and B.

    Parameters
    ----------
    object
        What differs: ``"variable /sst"``, ``"attribute /sst:units"``, ``"dimension /lat"``.
    property
        What of it: ``"type"``, ``"value"``; ``""`` if one dataset lacks the object.
    index
        Of a value of a variable.
    a, b
        What the datasets have, as exact text; None if nothing.
    """

    object: str
    property: str
    index: tuple[int, ...] | None = None
    a: str | None = None
    b: str | None = None

    def __str__(self) -> str:
        if self.b is None or self.a is None:
            only = "A" if self.b is None else "B"
            text = self.a if self.b is None else self.b
            return f"{self.object}: only in {only}" + (f": {_short(text, 0)}" if text else "")
        pairs = enumerate(zip(self.a, self.b, strict=False))
        shorter = min(len(self.a), len(self.b))
        start = next((at for at, (x, y) in pairs if x != y), shorter)
        a, b = _short(self.a, start), _short(self.b, start)
        if self.index is None:
            return f"{self.object}: {self.property}: {a} | {b}"
        return f"{self.object}[{', '.join(map(str, self.index))}]: {a} | {b}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two datasets.

    Parameters
    ----------
    a, b
        Where they are.
    differences
        Of the structure all, of values the first ones of each variable.
    differing
        How many values differ, by the path of the variable.
    values
        How many values of each dataset were compared.
    troubles
        What could not be read, and so not be compared.
    notes
        What was left aside.
    variables, nbytes, seconds
        Of how many variables values were compared, the bytes of these, and how long that took.
    """

    a: str
    b: str
    differences: tuple[Difference, ...] = ()
    differing: Mapping[str, int] = field(default_factory=dict)
    values: int = 0
    troubles: tuple[NCZarrError, ...] = ()
    notes: tuple[str, ...] = ()
    variables: int = 0
    nbytes: int = 0
    seconds: float = field(default=0.0, compare=False)

    def without(self, names: Collection[str]) -> Comparison:
        """Return the report without what is known to be lost.

        Parameters
        ----------
        names
            As of `LossWarning`. Of a variable that B has, the attributes are meant that decode it,
            and its decoded values; not those that are stored.
        """
        lost = {f"attribute {name}" for name in names}
        for name in names:
            lost.update(f"attribute {name}:{one}" for one in DECODING)
        kept = tuple(
            one
            for one in self.differences
            if one.object not in lost
            and not (
                one.object.partition(" ")[2] in names
                and (one.b is None or one.property == "decoded value")
            )
        )
        values = {one.object for one in kept if one.index is not None}
        return replace(
            self,
            differences=kept,
            differing={k: n for k, n in self.differing.items() if f"variable {k}" in values},
            troubles=tuple(error for error in self.troubles if str(error) not in names),
        )

    @property
    def equal(self) -> bool:
        """Whether all was compared, and nothing differs."""
        return self.status == 0

    @property
    def status(self) -> int:
        """The exit status: 0 if equal, 1 if different, 2 if something could not be compared."""
        return 2 if self.troubles else int(bool(self.differences))

    def lines(self) -> Iterator[str]:
        """Yield the report as text, line by line."""
        yield f"A: {self.a}"
        yield f"B: {self.b}"
        yield from map(str, self.differences[:_LINES])
        yield from self._rest()
        yield self.result

    @property
    def result(self) -> str:
        """The result in a line: ``equal: 14 variables, 1.2 GB, 3.4 s``."""
        word = ("equal", "different", "not comparable as a whole")[self.status]
        size = format_size(self.nbytes)
        return f"{word}: {counted(self.variables, 'variable')}, {size}, {self.seconds:.1f} s"

    def _rest(self) -> Iterator[str]:
        """Yield what is said besides the first differences."""
        if len(self.differences) > _LINES:
            yield f"and {len(self.differences) - _LINES:,} more differences"
        for path, count in self.differing.items():
            yield f"variable {path}: {count:,} differing values"
        for error in self.troubles:
            yield f"not compared: {error}"
        for note in self.notes:
            yield f"note: {note}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = (
            (one.object, str(one.index or one.property), one.a or "", one.b or "")
            for one in self.differences[:_LINES]
        )
        found = table(("", "", f"A: {self.a}", f"B: {self.b}"), rows)
        return report(self.result, found, paragraphs(self._rest()))

    def as_json(self) -> dict[str, Any]:
        """Return the report as what JSON can hold, the same for the same datasets."""
        found = asdict(replace(self, troubles=()))
        del found["seconds"]
        return found | {"equal": self.equal, "troubles": list(map(str, self.troubles))}


def _short(text: str, start: int) -> str:
    """Return a piece of a text in which position `start` can be seen."""
    begin = max(0, start - _COLUMNS // 2) if len(text) > _COLUMNS else 0
    piece = text[begin : begin + _COLUMNS]
    return ("…" if begin else "") + piece + ("…" if begin + _COLUMNS < len(text) else "")


class Tally:
    """The differences and troubles so far.

    Parameters
    ----------
    structure
        The differences of the structure.

    Attributes
    ----------
    compared
        How many values of each variable were compared, by path.
    nbytes
        The bytes of these.
    """

    def __init__(self, structure: Sequence[Difference]) -> None:
        self._differences = list(structure)
        self._differing: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._troubles: dict[str, NCZarrError] = {}
        self.compared: Counter[str] = Counter()
        self.nbytes = 0

    def differ(self, path: str, count: int, first: Sequence[Difference]) -> None:
        """Note that values of a variable differ, and keep the first of them."""
        self._differing[path] += count
        kept = first[: SHOWN - self._shown[path]]
        self._shown[path] += len(kept)
        self._differences += kept

    def trouble(self, error: NCZarrError) -> None:
        """Note that something could not be read; the same error counts once."""
        self._troubles.setdefault(str(error), error)

    def result(self, a: str, b: str, notes: Sequence[str], seconds: float) -> Comparison:
        """Return all as a report on A and B."""
        differences, troubles = tuple(self._differences), tuple(self._troubles.values())
        return Comparison(
            a,
            b,
            differences,
            dict(self._differing),
            self.compared.total(),
            troubles,
            tuple(notes),
            len(self.compared),
            self.nbytes,
            seconds,
        )
