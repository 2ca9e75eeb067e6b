"""Whatever is done to a classic or HDF5 file: an error of ours, or values; never anything else.

`ci/fuzz_files.py` runs the same over tens of thousands of damaged files.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import filedamage

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("corpus")
    filedamage.write_corpus(directory)
    return filedamage.corpus(directory)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage(corpus: list[Path], seed: int) -> None:
    rng = random.Random(f"files/{seed}")
    for number in range(50):
        data, before, extents = filedamage.good(rng.choice(corpus))
        damage = filedamage.mutate(data, rng)
        after = filedamage.read_all(damage.data, remote=number % 4 == 3)
        filedamage.check(before, after, damage, extents)
        if number % 10 == 0:
            filedamage.open_with_xarray(damage.data)
