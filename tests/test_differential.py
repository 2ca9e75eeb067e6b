"""Random datasets, read by us and by those who wrote them; more of them: ci/fuzz_differential.py."""

from __future__ import annotations

import pytest

from tests import differential

#: Of each batch, and how many there are.
CASES, BATCHES = 20, 12


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_differs(batch: int) -> None:
    for number in range(batch * CASES, (batch + 1) * CASES):
        differential.run(11, number)


def test_what_differs_is_seen() -> None:
    one = {"/": differential.GroupReading({"a": 1}, None, {})}
    other = {"/": differential.GroupReading({"a": 1.0}, None, {})}
    assert list(differential.differences(one, one)) == []
    assert [d.what for d in differential.differences(one, other)] == ["attribute a"]
