"""Every stored form on every way: what comes out is what went in, or its loss was announced.

Sources are written, and sources and results are read, by libraries that are not ours
(tests/support/corpora/stored_forms.py, tests/support/oracles/stored_ways.py). `KNOWN` has the
defects that are known; whoever mends one removes its row, which fails from then on.
docs/stored-forms.md is made of the same by ci/stored_forms.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.corpora.stored_forms import SOURCES
from tests.support.oracles.stored_known import KNOWN
from tests.support.oracles.stored_ways import DEFECTS, WAYS, Verdict, forms_of, judge, ways_of

#: Of these, without packing, the quick tests have all fills.
FEW = ("i2", "u1", "f4", "char", "bytes", "string")
#: As many as there are ways, or sources.
PAIRS = [
    (source, way)
    for source, way in zip(itertools.cycle(SOURCES), [*WAYS, *WAYS], strict=False)
    if way in ways_of(source)
]


def defects(source: str, way: str, found: dict[str, Verdict]) -> list[str]:
    """Return what is neither equal nor announced nor known, as lines."""
    return [
        f"{source} | {way} | {key} | {verdict.outcome} | {verdict.text[:300]}"
        for key, verdict in found.items()
        if verdict.outcome in DEFECTS and not any(one.has(source, way, key) for one in KNOWN)
    ]


@pytest.mark.parametrize(("source", "way"), PAIRS)
def test_a_few_forms(source: str, way: str, tmp_path: Path) -> None:
    forms = [form for form in forms_of(source, way) if form.kind in FEW and not form.packing]
    attributes = list(SOURCES[source].attributes)[::4]
    assert defects(source, way, judge(source, way, forms, attributes, tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "way"), [(source, way) for source in SOURCES for way in ways_of(source)]
)
def test_all_forms(source: str, way: str, tmp_path: Path) -> None:
    forms = forms_of(source, way)
    verdicts = judge(source, way, forms, SOURCES[source].attributes, tmp_path)
    assert len(verdicts) >= len(forms)
    assert defects(source, way, verdicts) == []
    bad = [key for key, verdict in verdicts.items() if verdict.outcome in DEFECTS]
    known = [one for one in KNOWN if one.goes(source, way)]
    unseen = [one for one in known if not any(one.has(source, way, key) for key in bad)]
    assert unseen == [], "mended: remove them (or this source or way of them)"
