"""Random datasets, read by us and by their writers; ci/fuzz_differential.py has more of them."""

from __future__ import annotations

import pytest

from tests.support.marks import slow_but
from tests.support.oracles import differential
from tests.support.oracles.readings import GroupReading, differences

#: Of each batch, and how many there are.
CASES, BATCHES = 20, 12


@pytest.mark.parametrize("batch", slow_but(range(BATCHES), 0))
def test_nothing_differs(batch: int) -> None:
    for number in range(batch * CASES, (batch + 1) * CASES):
        differential.run(11, number)


def test_what_differs_is_seen() -> None:
    one = {"/": GroupReading({"a": 1}, None, {})}
    other = {"/": GroupReading({"a": 1.0}, None, {})}
    assert list(differences(one, one)) == []
    assert [d.what for d in differences(one, other)] == ["attribute a"]
