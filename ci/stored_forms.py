#!/usr/bin/env python3
"""Make the tables of docs/stored-forms.md: what becomes of every stored form on every way.

    python ci/stored_forms.py           run all (minutes), write them
    python ci/stored_forms.py --check   say whether they are as they would be written

What is run is that of tests/whole/test_stored_forms.py, in two processes.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import page_tables  # noqa: E402 - the path comes first

from tests.support.corpora.stored_forms import SOURCES, Form  # noqa: E402 - the path comes first
from tests.support.oracles.stored_ways import DEFECTS, OUTCOMES, WAYS, forms_of, judge, ways_of  # noqa: E402

PAGE = ROOT / "docs" / "stored-forms.md"
#: What the table calls the worst that was found of all sources, if it is not equal.
SAID = {"announced": "warning", "refused": "error", **dict.fromkeys(DEFECTS, "**defect**")}
TYPES = {
    "i1": "int8",
    "u1": "uint8",
    "i2": "int16",
    "u2": "uint16",
    "i4": "int32",
    "u4": "uint32",
    "i8": "int64",
    "u8": "uint64",
    "f4": "float32",
    "f8": "float64",
}

#: How the names of copies begin.
COPY = "copy → "
#: The worst outcome by row and by way.
Found = Mapping[tuple[str, ...], Mapping[str, str]]


def run(pair: tuple[str, str]) -> tuple[str, dict[str, str]]:
    """Let one source go one way; return the way, and the outcome of each form and attribute."""
    source, way = pair
    forms = forms_of(source, way)
    with tempfile.TemporaryDirectory() as folder:
        verdicts = judge(source, way, forms, SOURCES[source].attributes, Path(folder))
    return way, {key: verdict.outcome for key, verdict in verdicts.items()}


def run_all() -> tuple[Found, Found]:
    """Return the outcomes of forms (by type, fill and packing), and of attributes (by name)."""
    known = {form.name: form for source in SOURCES.values() for form in source.forms}
    forms: dict[tuple[str, ...], dict[str, str]] = collections.defaultdict(dict)
    attributes: dict[tuple[str, ...], dict[str, str]] = collections.defaultdict(dict)
    pairs = [(source, way) for source in SOURCES for way in ways_of(source)]
    with ProcessPoolExecutor(2) as pool:
        for way, outcomes in pool.map(run, pairs):
            for key, outcome in outcomes.items():
                if ":" in key:
                    row = attributes[(key.rpartition(":")[2],)]
                elif key in known:
                    row = forms[_row(known[key])]
                else:
                    continue
                row[way] = max(row.get(way, "equal"), outcome, key=OUTCOMES.index)
    return forms, attributes


def _row(form: Form) -> tuple[str, ...]:
    return TYPES.get(form.kind, form.kind), form.fill, form.packing


def table(found: Found, names: Sequence[str]) -> list[str]:
    """Return a table of what is not equal; rows that differ in one name only become one."""
    rows = {key: said for key, ways in found.items() if (said := _said(ways))}
    for position in range(len(names)):
        merged: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for key, said in rows.items():
            rest = (*key[:position], "", *key[position + 1 :])
            merged.setdefault((rest, said), []).append(key[position])
        rows = {
            (*rest[:position], _list(parts), *rest[position + 1 :]): said
            for (rest, said), parts in merged.items()
        }
    lines = [f"| {' | '.join([*names, 'what is not equal'])} |", f"|{'---|' * (len(names) + 1)}"]
    return lines + [f"| {' | '.join([*key, said])} |" for key, said in rows.items()]


def _said(ways: Mapping[str, str]) -> str:
    """Return which ways warn, refuse or fail; empty if all are equal."""
    by_word = {word: [way for way in WAYS if SAID.get(ways.get(way, "")) == word]
               for word in dict.fromkeys(SAID.values())}  # fmt: skip
    return "; ".join(f"{word}: {_ways(found)}" for word, found in by_word.items() if found)


def _ways(found: Sequence[str]) -> str:
    """Return ways, with the formats of all copies together."""
    copies = [way.removeprefix(COPY) for way in found if way.startswith(COPY)]
    others = [way for way in found if not way.startswith(COPY)]
    names = [f"copy ({', '.join(copies)})"] if copies else []
    return ", ".join(names + [way.replace(", Zarr 2", " (Zarr 2)") for way in others])


def _list(names: Iterable[str]) -> str:
    """Return names in their order; all integers in one word."""
    names = list(names)
    integers = [name for name in TYPES.values() if "int" in name]
    if set(integers) <= set(names):
        names = ["integers", *(name for name in names if name not in integers)]
    return ", ".join(names)


def tables() -> dict[str, list[str]]:
    """Return the lines of the tables, by their names."""
    forms, attributes = run_all()
    return {
        "forms": table(forms, ("type", "_FillValue", "packing")),
        "attributes": table(attributes, ("attribute",)),
    }


if __name__ == "__main__":
    sys.exit(page_tables.main(PAGE, __doc__, tables))
