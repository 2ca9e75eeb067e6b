"""netCDF-C as adversary, three hundred times; ``ci/fuzz_adversary.py`` does it as often as wanted.

Each test has its own examples, so that processes share them.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support.examples import examples
from tests.support.faults.adversary import Case, by_ncdump, cases, check

#: What Debian's netCDF-C knows.
READERS = {"4.8.1": {"ncdump 4.9.0": partial(by_ncdump, "-p", "9,17")}}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_both_read_what_either_wrote_and_changed(number: int) -> None:
    @seed(number)
    @settings(
        max_examples=examples(50),
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
    )
    @given(cases())
    def run(case: Case) -> None:
        assert ("read by us", "NCZarr of ours") in check(case, READERS.get(case.compat))

    run()
