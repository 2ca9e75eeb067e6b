"""The time of decoding that doctor predicts: what is decoded, by the rates of its codecs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs import registry
from nczarr_xarray.tools.predict import touched
from nczarr_xarray.tools.predict.network import Cost

SHAPE, CHUNKS = (24, 100, 200), (6, 50, 100)
NBYTES = math.prod(SHAPE) * 4


def costs(folder: Path, codec: str | None, latency: float = 0.01) -> dict[str, Cost | None]:
    values = np.random.default_rng(0).integers(0, 99, SHAPE).astype("i4")
    compressor = None if codec is None else {"id": codec}
    encoding = {"v": {"chunks": CHUNKS, "compressor": compressor}}
    path = folder / f"{codec}.zarr"
    ds = xr.Dataset({"v": (("t", "y", "x"), values)})
    ds.nczarr.to_nczarr(f"file://{path}#mode=zarr", mode="w", encoding=encoding)
    report = nczarr_xarray.doctor(path, latency=latency, bandwidth=1e12)
    return dict(report.predictions[0].costs)


@pytest.mark.parametrize("codec", [None, "zlib", "bz2"])
def test_it_is_that_of_the_chunks_that_are_touched(tmp_path: Path, codec: str | None) -> None:
    found = costs(tmp_path, codec)
    slow = 0.0 if codec is None else 1 / registry.codec(codec).rate
    for pattern, chunks in {"map": 4, "series": 4, "everything": 16}.items():
        cost = found[pattern]
        assert cost is not None
        nbytes = NBYTES * chunks / 16
        shared = min(chunks, processors())
        assert cost.decoding == pytest.approx(nbytes * (slow + 1 / 4e9) / shared, rel=0.1, abs=2e-4)
        assert cost.seconds >= cost.rounds * 0.01 + cost.decoding


def test_it_goes_on_while_bytes_come(tmp_path: Path) -> None:
    fast, slow = (costs(tmp_path, "zlib", latency)["everything"] for latency in (0.0, 1.0))
    assert fast is not None
    assert slow is not None
    assert fast.decoding == slow.decoding
    assert slow.seconds == pytest.approx(slow.rounds, rel=0.05, abs=1.05)


@given(st.data())
def test_what_is_touched(data: st.DataObject) -> None:
    length, piece = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 60))
    begin = data.draw(st.integers(0, length))
    index = data.draw(st.just(slice(begin, data.draw(st.integers(begin, length)))))
    (found,) = touched((index,), (length,), (piece,))
    assert list(found) == sorted({i // piece for i in range(length)[index]})
