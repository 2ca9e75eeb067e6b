"""What runs of `ci/fuzz_coverage.py` have left: a value or an error of ours, as then."""

from __future__ import annotations

import pytest

from tests.support.corpora import parsers


@pytest.mark.parametrize("name", parsers.PARSERS)
def test_kept_inputs(name: str) -> None:
    if name == "folder":  # references in Parquet
        pytest.importorskip("pyarrow")
    inputs = parsers.kept(name)
    assert inputs
    ends = {type(parsers.check(name, data)) for data in inputs}
    assert type(None) in ends or len(ends) > 1  # some get through, or fail in several ways


def test_every_kept_input_has_a_parser() -> None:
    assert {path.stem for path in parsers.CORPUS.iterdir()} == parsers.PARSERS.keys()
    assert sum(len(data) for name in parsers.PARSERS for data in parsers.kept(name)) < 500_000
