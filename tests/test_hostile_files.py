"""Whatever is done to a classic or HDF5 file: an error of ours, or values; never anything else.

`ci/fuzz_files.py` runs the same over tens of thousands of damaged files.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import filedamage, filepromises

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("corpus")
    filepromises.write_corpus(directory)
    return filepromises.corpus(directory)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage(corpus: list[Path], seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"files/{seed}")
    for number in range(50):
        good = filepromises.good(rng.choice(corpus))
        donor = rng.choice(corpus).read_bytes()
        damage = filedamage.mutate(good.data, good.anatomy, donor, rng)
        way = filepromises.WAYS[number % 4]
        after = filepromises.read_all(damage.data, way=way, path=tmp_path / "damaged")
        filepromises.check(good, after, damage)
        if number % 10 == 0:
            filepromises.open_with_xarray(damage.data)


def test_the_corpus_has_what_damage_needs(corpus: list[Path]) -> None:
    """Structures of all kinds, some with checksums that can be repaired."""
    signatures: set[bytes] = set()
    sealed = 0
    for path in corpus:
        good = filepromises.good(path)
        signatures |= set(filedamage.SIGNATURES.findall(good.data))
        sealed += len(good.anatomy.sealed)
        assert good.anatomy.structures, path
    assert sealed > 300
    assert signatures >= {b"OHDR", b"TREE", b"SNOD", b"HEAP", b"GCOL", b"FRHP", b"FHDB", b"BTHD"}
    assert signatures >= {b"BTLF", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EADB", b"OCHK"}
