"""What of files agrees and what not, over all of them: ``aggregate(…, dry_run=True)``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.summary import Layout, Summary

#: Files whose reasons are kept; others are counted.
MOST = 100
#: What may differ between files: fields of `VariableForm`, and how they are called.
_FIELDS = {
    "nc_type": "type",
    "dimensions": "order of dimensions",
    "units": "units",
    "calendar": "calendar",
    "packing": "packing",
    "marks": "missing values",
}


@dataclass(slots=True)
class Report:
    """What became of files that were to be one dataset.

    Attributes
    ----------
    files
        How many there are.
    fit
        How many of these fit together.
    dimensions
        Lengths of the dimensions of the dataset, by path.
    variables
        Paths of its variables.
    differ
        What is not the same in all files that fit, and is converted or left out: what, of which
        variable or group, and in how many files it is not as in the dataset.
    refused
        What does not fit: the file, or the variable, and why; `MOST` of them at most.
    more
        How many others there are.
    """

    files: int
    fit: int = 0
    dimensions: dict[str, int] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    differ: list[tuple[str, str, int]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    more: int = 0

    @property
    def is_full(self) -> bool:
        """Whether no more reasons are kept."""
        return len(self.refused) >= MOST

    def refuse(self, target: str, error: NCZarrError) -> None:
        """Note why a file does not fit."""
        reason = error.reason if error.object == target else str(error)
        if self.is_full:
            self.more += 1
        else:
            self.refused.append((target, reason))

    def joined(self, files: Sequence[Summary], expected: Layout, found: Aggregated) -> None:
        """Note what is made of files."""
        self.fit = len(files)
        self.variables = [variable.path for variable in found.variables()]
        groups = found.hierarchy.root.walk()
        self.dimensions = {d.path: d.size for group in groups for d in group.dimensions.values()}
        layouts = {id(file.layout): file.layout for file in files}
        counts = Counter(id(file.layout) for file in files)
        differ = Counter[tuple[str, str]]()
        for number, layout in layouts.items():
            differ.update(dict.fromkeys(_differences(layout, expected), counts[number]))
        self.differ = [(what, path, count) for (what, path), count in sorted(differ.items())]

    def as_json(self) -> dict[str, Any]:
        """Return this as JSON has it."""
        differ = [dict(zip(("what", "of", "files"), one, strict=True)) for one in self.differ]
        refused = [{"object": target, "reason": reason} for target, reason in self.refused]
        return {**asdict(self), "differ": differ, "refused": refused}

    def lines(self) -> Iterable[str]:
        """Yield this as lines of text."""
        yield f"{self.fit} of {self.files} files fit together"
        if self.fit:
            lengths = (f"{path.strip('/')} {size}" for path, size in self.dimensions.items())
            yield f"dimensions: {', '.join(lengths)}"
            yield f"variables: {', '.join(path.strip('/') for path in self.variables)}"
        for what, path, count in self.differ:
            yield f"differs in {count}: {what} of {path}"
        for target, reason in self.refused:
            yield f"{target}: {reason}"
        if self.more:
            yield f"and {self.more} more"


def _differences(layout: Layout, expected: Layout) -> Iterator[tuple[str, str]]:
    """Yield what is otherwise in files of a layout."""
    for wanted in expected.forms:
        form = layout.form(wanted.path)
        if form is None:
            yield "lack", wanted.path
            continue
        for name, what in _FIELDS.items():
            if getattr(form, name) != getattr(wanted, name):
                yield what, wanted.path
