"""Whatever is done to a classic or HDF5 file: an error of ours, or values; never anything else.

`ci/fuzz_files.py` runs the same over tens of thousands of damaged files.
"""

from __future__ import annotations

import gc
import io
import random
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.faults import filedamage, filepromises
from tests.support.marks import slow_but

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("corpus")
    filepromises.write_corpus(directory)
    return filepromises.corpus(directory)


@pytest.mark.parametrize("seed", slow_but(range(8), 0, 1, 2))
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


def test_garbage_of_h5py(tmp_path: Path) -> None:
    """The thread that brings bytes does not wait for h5py's lock, which waits for the bytes."""
    filepromises.write_corpus(tmp_path, "h5_virtual")
    data = (tmp_path / "h5_virtual.nc").read_bytes()

    states: list[bool] = []

    class Busy(filepromises.RemoteMemory):
        async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
            states.append(gc.isenabled())
            _ = [[] for _ in range(10_000)]  # a collection would be due
            return await super().fetch(extents)

    def leave_garbage() -> None:
        file = h5py.File(io.BytesIO(data))
        cycle: list[object] = [file, file["source"]]
        cycle.append(cycle)

    with open_hierarchy(Busy(data)) as opened:
        variable = opened.hierarchy.root.variables["virtual"]
        reader = opened.reader(variable)
        gc.collect()
        leave_garbage()
        states.clear()
        np.testing.assert_array_equal(reader.read(), np.arange(5))
    assert states
    assert not any(states)
    assert gc.isenabled()


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
