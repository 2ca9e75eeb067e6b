"""The checksum of HDF5's metadata: in Python and by numcodecs, whose lookup3 is the oracle."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.jenkins import jenkins_lookup3

from nczarr_xarray.formats.hdf5 import binary


@given(st.binary(max_size=200) | st.integers(0, 60).map(lambda n: b"\xff" * n))
def test_in_python_it_is_that_of_numcodecs(data: bytes) -> None:
    assert binary.in_python(data) == jenkins_lookup3(data, 0)
    assert binary.in_python(memoryview(data)) == jenkins_lookup3(data, 0)


def test_python_sums_the_first_bytes_of_a_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []

    def in_python(data: bytes) -> int:
        summed.append(len(data))
        return int(jenkins_lookup3(data, 0))

    monkeypatch.setattr(binary, "in_python", in_python)
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "numcodecs"})
    data = bytes(20_000)
    new = binary.Lookup3()
    assert [new(data) for _ in range(3)] == [jenkins_lookup3(data, 0)] * 3
    assert summed == [20_000]
