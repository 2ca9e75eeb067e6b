"""Runs of plain elements against numpy: every selection equals that of the whole array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrWarning
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.chunks import strides
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.model import FileStrides
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise
from tests.support.faults.memory import little_memory


@pytest.fixture(params=["as they are", "small"], autouse=True)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long is so long that no test would reach it."""
    if request.param == "small":
        monkeypatch.setattr(strides, "SHORT_RUN", 16)
        monkeypatch.setattr(strides, "LONG_ROW", 40)
        monkeypatch.setattr(strides, "LONG_RUN", 100)


Layout = tuple[np.ndarray[Any, Any], bytes, tuple[int, ...]]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Values, the bytes that hold them, and their strides: contiguous, or records with others."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    dtype = np.dtype(draw(st.sampled_from(["<i4", ">i4", ">f8", ">i2", "S1"])))
    values = np.arange(np.prod(shape)).astype("u1" if dtype.kind == "S" else dtype)
    values = values.view(dtype).reshape(shape) if dtype.kind == "S" else values.reshape(shape)
    between = draw(st.sampled_from([0, 0, 1, 4, 40, 30_000]))
    rows = [values[i : i + 1].tobytes() + b"\xee" * between for i in range(shape[0])]
    first = len(rows[0])
    stride = [dtype.itemsize]
    for length in shape[:0:-1]:
        stride.insert(0, stride[0] * length)
    return values, b"".join(rows), (first, *stride[1:])


def fill(plan: Any, layout: Layout, data: st.DataObject) -> np.ndarray[Any, Any]:
    """Read the runs of a plan in a random order, in random groups."""
    values, stored, stride = layout
    result = np.full(plan.shape, 77).astype(values.dtype.newbyteorder("="))
    gap = data.draw(st.sampled_from([0, 0, 24, 200, strides.LOCAL_GAP]))
    for runs in strides.plan_runs(plan, stride, values.dtype, gap):
        assert len(runs.starts) == np.prod(runs.outer, dtype=int)
        numbers = list(range(len(runs.starts)))
        if data.draw(st.booleans()):
            numbers = data.draw(st.permutations(numbers))
        size = data.draw(st.integers(1, len(numbers)))
        for at in range(0, len(numbers), size):
            group = numbers[at : at + size]  # as a file has them: in any order
            starts = [int(runs.starts[n]) for n in group]
            assert all(s >= 0 and s + runs.length <= len(stored) for s in starts)
            pieces = [stored[s : s + runs.length] for s in starts]
            rooms = [runs.room(n, result) for n in group] if runs.is_copy else [None]
            if data.draw(st.booleans()) and not any(room is None for room in rooms):
                for room, piece in zip(rooms, pieces, strict=True):
                    assert room is not None
                    room.view(np.uint8)[:] = np.frombuffer(piece, np.uint8)
                    if not values.dtype.isnative:
                        room.byteswap(inplace=True)
            else:
                runs.scatter(group, pieces, result)
    return plan.finish(result)


@pytest.mark.parametrize("long", [strides.LONG_RUN, 64])
@given(layout=layouts(), data=st.data())
def test_boxes(long: int, layout: Layout, data: st.DataObject) -> None:
    values = layout[0]
    key = data.draw(outer_keys(values.shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strides, "LONG_RUN", long)
        got = fill(plan_outer(key, values.shape, values.shape), layout, data)
    np.testing.assert_array_equal(got, outer(values, key))


@given(layout=layouts(), data=st.data())
def test_points(layout: Layout, data: st.DataObject) -> None:
    values = layout[0]
    key = data.draw(point_keys(values.shape))
    got = fill(plan_points(key, values.shape, values.shape), layout, data)
    np.testing.assert_array_equal(got, pointwise(values, key))


@pytest.mark.parametrize("limits", ["as they are"], indirect=True)
def test_runs_are_few_and_waste_little() -> None:
    shape, dtype = (365, 180, 360), np.dtype(">f4")
    stride = (180 * 360 * 4, 360 * 4, 4)

    def runs(*key: Any) -> list[strides.Runs]:
        return strides.plan_runs(plan_outer(key, shape, shape), stride, dtype, 0)

    everything = slice(None)
    (series,) = runs(everything, 3, 5)
    assert (len(series.starts), series.length) == (365, 4)
    (box,) = runs(everything, slice(10, 20), slice(5, 50))
    assert len(box.starts) == 365
    assert box.length < strides.SHORT_RUN
    (step,) = runs(7, everything, everything)
    assert (len(step.starts), step.length) == (1, 180 * 360 * 4)
    (full,) = runs(everything, everything, everything)
    assert full.length <= strides.LONG_RUN
    assert full.length * len(full.starts) == 365 * 180 * 360 * 4
    short = (100, 512, 1024)
    plan = plan_outer((everything,) * 3, short, short)
    parts = strides.plan_runs(plan, (1 << 21, 1 << 12, 4), dtype, 0)
    assert {part.length for part in parts} == {strides.LONG_RUN}
    assert sum(len(part.starts) for part in parts) == 200
    assert all(part.is_copy for part in parts)
    line = strides.plan_runs(plan_outer((everything,), (10**7,), (10**7,)), (4,), dtype, 0)
    assert sum(part.length for part in line) == 4 * 10**7
    assert all(part.length <= strides.LONG_RUN for part in line)


def test_lists_are_read_as_slices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run for each row, or megabyte, of which much is wanted; elements that are far apart."""
    monkeypatch.undo()
    generator = np.random.default_rng(0)
    half = np.sort(generator.choice(10_000, 5000, replace=False))
    long = np.sort(generator.choice(1 << 20, 1 << 19, replace=False))
    dtype = np.dtype("<f4")
    for shape, index, count in (
        ((7, 10_000), half, 7),
        ((7, 10_000), half[::-1], 7),
        ((7, 10_000), generator.permutation(half), 7),
        ((7, 10_000), half[::100], 7 * 50),
        ((1 << 20,), long, 4),
        ((1 << 20,), long[::-1], 4),
        ((1 << 20,), generator.permutation(long), len(long)),  # parts would be of all of it
    ):
        key = (*[slice(None)] * (len(shape) - 1), index)
        runs = strides.plan_runs(
            plan_outer(key, shape, shape), (40_000, 4)[-len(shape) :], dtype, 0
        )
        assert sum(len(part.starts) for part in runs) == count
        assert max(part.length for part in runs) <= strides.LONG_RUN


@pytest.mark.parametrize("key", [slice(None, None, 10**7), np.array([0, 10**8 - 1])])
def test_elements_far_apart_take_little_memory(key: Any) -> None:
    """As much as the elements, not as all that is between them."""
    length, dtype = 10**8, np.dtype("<f4")
    wanted = np.array(range(length)[key]) if isinstance(key, slice) else key
    with little_memory(1 << 16):
        runs = strides.plan_runs(plan_outer((key,), (length,), (length,)), (4,), dtype, 0)
    assert [part.length for part in runs] == [4]
    assert (runs[0].starts == 4 * wanted).all()


def test_a_scalar_and_nothing() -> None:
    dtype = np.dtype(">f8")
    (runs,) = strides.plan_runs(plan_outer((), (), ()), (), dtype, 0)
    result = np.empty(())
    runs.scatter([0], [np.array(2.5, dtype).tobytes()], result)
    assert result == 2.5
    empty = plan_outer((slice(None), slice(0, 0)), (4, 5), (4, 5))
    assert strides.plan_runs(empty, (40, 8), dtype, 0) == []


@given(layout=layouts(), data=st.data())
def test_the_end_is_known_beforehand(layout: Layout, data: st.DataObject) -> None:
    values, _, stride = layout
    plan = plan_outer(data.draw(outer_keys(values.shape)), values.shape, values.shape)
    ends = [
        int(r.starts.max()) + r.length for r in strides.plan_runs(plan, stride, values.dtype, 0)
    ]
    assert strides.end_of(plan, stride, values.dtype.itemsize) == max(ends, default=0)


@given(st.permutations(range(6)), st.integers(1, 6))
def test_rows_out_of_order(order: list[int], size: int) -> None:
    """Rows that are asked for in one order and arrive in another (the file's)."""
    values = np.arange(60, dtype=">f4").reshape(6, 10)
    plan = plan_outer((np.array(order), slice(None)), values.shape, values.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strides, "SHORT_RUN", 8)
        patch.setattr(strides, "WANTED_SHARE", 2)
        (runs,) = strides.plan_runs(plan, (40, 4), values.dtype, 0)
    stored, result = values.tobytes(), np.full(plan.shape, -1, "f4")
    arrival = np.argsort(runs.starts)
    for at in range(0, len(arrival), size):
        numbers = arrival[at : at + size]
        data = [stored[int(s) : int(s) + runs.length] for s in runs.starts[numbers]]
        runs.scatter(numbers, data, result)
    np.testing.assert_array_equal(plan.finish(result), values[order])


@pytest.mark.parametrize("shape", [(30_000,), (30_000, 6)])
def test_records_on_this_machine_are_read_in_long_runs(
    limits: None, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for each would take longer than reading what lies between them."""
    monkeypatch.setattr(strides, "SHORT_RUN", 1 << 14)
    monkeypatch.setattr(strides, "LONG_RUN", 1 << 20)
    stride = (1200, 1)[: len(shape)]
    plan = plan_outer((slice(None),) * len(shape), shape, shape)
    apart = strides.plan_runs(plan, stride, np.dtype("S1"), 0)
    assert sum(len(runs.starts) for runs in apart) == 30_000
    together = strides.plan_runs(plan, stride, np.dtype("S1"), strides.LOCAL_GAP)
    assert sum(len(runs.starts) for runs in together) < 40
    assert max(runs.length for runs in together) <= strides.LONG_RUN
    far = strides.plan_runs(plan, (1 << 15, 1)[: len(shape)], np.dtype("S1"), strides.LOCAL_GAP)
    assert sum(len(runs.starts) for runs in far) == 30_000


@given(layouts())
def test_all_at_once(layout: Layout) -> None:
    values, stored, between = layout
    array = FileStrides("/v", values.shape, values.dtype, 3, between)
    source = MemoryBytes(b"xyz" + stored, "memory")
    found = ChunkReader(array, DataFile(source)).read_block(None, remember=False)
    if found is not None:
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, values)
    truncated = MemoryBytes(b"xyz" + stored[: values.nbytes // 2], "memory")
    assert ChunkReader(array, DataFile(truncated)).read_block(None, remember=False) is None


def test_nothing_is_read_of_a_file_that_ends_before_its_data() -> None:
    array = FileStrides("/v", (10,), np.dtype("<i4"), 100, (4,))
    reader = ChunkReader(array, DataFile(MemoryBytes(bytes(50), "memory")))
    assert reader.read(plan_outer((slice(0, 0),), (10,), (10,))).shape == (0,)
    with pytest.raises(FormatError, match="go on to byte 104, and there are 50: truncated"):
        reader.read(plan_outer((slice(0, 1),), (10,), (10,)))


@pytest.fixture(params=[">i4", "<i4"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    """A file of plain elements, and what it holds: as long as is read straight into a result."""
    values = np.arange(50_000, dtype=request.param)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["v"] = values
        file.create_dataset("unwritten", (50_000,), request.param, fillvalue=7)
    return tmp_path / "v.h5", values


def test_long_runs_are_in_the_order_of_this_machine(plain: tuple[Path, Any]) -> None:
    path, values = plain
    with xr.open_dataset(path, engine="nczarr", cache=False) as ds:
        for part in (slice(None), slice(7, 40_000), slice(3, 5), slice(None, None, 2)):
            np.testing.assert_array_equal(ds.v[part], values[part])


def test_what_was_never_written_is_fill(plain: tuple[Path, Any]) -> None:
    with xr.open_dataset(plain[0], engine="nczarr", cache=False, mask_and_scale=False) as ds:
        for part in (slice(None), slice(7, 40_000)):
            assert (ds.unwritten[part] == 7).all()


@pytest.mark.parametrize("format_", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"])
def test_a_file_that_ends_before_its_data(format_: Any, tmp_path: Path) -> None:
    path = tmp_path / "v.nc"
    with netCDF4.Dataset(path, "w", format=format_) as file:
        file.createDimension("x", 1000)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(1000)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.warns(NCZarrWarning, match="truncated"):
        dataset = xr.open_dataset(path, engine="nczarr", cache=False)
    with dataset as ds:
        assert ds.v[:999].values.tolist() == list(range(999))
        for part in (slice(None), slice(500, None), 999):
            with pytest.raises(FormatError, match="truncated"):
                ds.v[part].load()
