"""What runs of `ci/fuzz_coverage.py` have left: a value or an error of ours, as then."""

from __future__ import annotations

import pytest

from tests.support import parsers


@pytest.mark.parametrize("name", parsers.PARSERS)
def test_kept_inputs(name: str) -> None:
    inputs = sorted((parsers.CORPUS / name).iterdir())
    assert inputs
    ends = {type(parsers.check(name, path.read_bytes())) for path in inputs}
    assert type(None) in ends or len(ends) > 1  # some get through, or fail in several ways


def test_every_kept_input_has_a_parser() -> None:
    assert {path.name for path in parsers.CORPUS.iterdir()} == parsers.PARSERS.keys()
    sizes = [path.stat().st_size for path in parsers.CORPUS.glob("*/*")]
    assert sum(sizes) < 500_000
