"""After a random history of changes, a dataset is what the same changes make of it in memory."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import xarray as xr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from nczarr_fsspec.errors import ExportError
from nczarr_xarray import to_nczarr, validate
from tests.support.corpora.random_values import NUMBERS, numbers, part
from tests.support.examples import examples
from tests.support.oracles.written import opened

Array: TypeAlias = np.ndarray[Any, Any]
#: Dimensions and values of each variable.
Variables: TypeAlias = dict[str, tuple[tuple[str, ...], Array]]

TARGETS = ("d.nczarr", "d.zip#mode=nczarr,zip", "d.zarr#mode=zarr")
TYPES = (*NUMBERS, "bool", "M8[ns]", "O")
FIRST, DAY = np.datetime64("2001-01-01", "ns"), np.timedelta64(1, "D")
#: Each has two bytes in UTF-8: one that is longer than those before it would be refused.
TEXTS = np.array(["ab", "cd", "é"], dtype=object)
CHOICES = st.integers(0, 2**32 - 1).map(random.Random)


class History(RuleBasedStateMachine):
    """A dataset that is changed at `url`, and the variables that it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="nczarr-history-"))
        self.url = ""
        self.expected: Variables = {}

    @initialize(name=st.sampled_from(TARGETS), choose=CHOICES)
    def create(self, name: str, choose: random.Random) -> None:
        self.url = f"file://{self.folder}/{name}"
        sizes = {dim: choose.randint(1, 6) for dim in "tyx"}
        first = {f"v{number}": new(choose, sizes) for number in range(choose.randint(1, 4))}
        first |= {f"along_{dim}": ((dim,), np.arange(size)) for dim, size in sizes.items()}
        first["t"] = ("t",), FIRST + np.arange(sizes["t"]) * DAY
        options = {} if name.endswith("=zarr") else {"unlimited_dims": ["t"]}
        self.store(choose, first, mode="w", encoding=chunks(choose, first), **options)
        self.expected = first

    @rule(choose=CHOICES)
    def append(self, choose: random.Random) -> None:
        steps = choose.randint(1, 4)
        more: Variables = {}
        for name, (dims, old) in self.expected.items():
            if "t" in dims:
                shape = [steps if dim == "t" else self.sizes[dim] for dim in dims]
                more[name] = dims, values(choose, old.dtype, shape)
        more["t"] = ("t",), self.expected["t"][1][-1] + np.arange(1, steps + 1) * DAY
        self.store(choose, more, append_dim="t")
        for name, (dims, added) in more.items():
            joined = np.concatenate([self.expected[name][1], added], axis=dims.index("t"))
            self.expected[name] = dims, joined

    @rule(choose=CHOICES)
    def write_region(self, choose: random.Random) -> None:
        within = part(choose, tuple(self.sizes.values()))
        region = dict(zip(self.sizes, within, strict=True))
        del region[choose.choice(list(region))]
        given: Variables = {}
        for name, (dims, old) in self.some(choose).items():
            if region.keys() & set(dims):
                at = tuple(region.get(dim, slice(None)) for dim in dims)
                given[name] = dims, values(choose, old.dtype, old[at].shape)
        used = {dim for dims, _ in given.values() for dim in dims}
        region = {dim: at for dim, at in region.items() if dim in used}
        if given:
            self.store(choose, given, region=region)
        for name, (dims, part_of_it) in given.items():
            whole = self.expected[name][1].copy()
            whole[tuple(region.get(dim, slice(None)) for dim in dims)] = part_of_it
            self.expected[name] = dims, whole

    @rule(choose=CHOICES)
    def add_or_replace(self, choose: random.Random) -> None:
        names = ["n0", "n1", *self.some(choose)]
        given = {choose.choice(names): new(choose, self.sizes)}
        self.store(choose, given, mode="a", encoding=chunks(choose, given))
        self.expected |= given

    @rule(choose=CHOICES)
    def give_new_values(self, choose: random.Random) -> None:
        given = {
            name: (dims, values(choose, old.dtype, old.shape))
            for name, (dims, old) in self.some(choose).items()
        }
        self.store(choose, given, mode="r+")
        self.expected |= given

    @rule(choose=CHOICES)
    def write_a_part_onto_itself(self, choose: random.Random) -> None:
        dim = choose.choice(list(self.sizes))
        kept = slice(choose.randrange(self.sizes[dim]), None, choose.randint(1, 2))
        chunked: dict[str, Any] = choose.choice([{}, {"chunks": {}}])
        with xr.open_dataset(self.url, engine="nczarr", **chunked) as dataset:
            to_nczarr(dataset.isel({dim: kept}), self.url, mode="w")
        for name, (dims, old) in self.expected.items():
            at = tuple(kept if one == dim else slice(None) for one in dims)
            self.expected[name] = dims, old[at]

    @rule(choose=CHOICES)
    def be_refused(self, choose: random.Random) -> None:
        """What is refused changes nothing, though the other variables of the call are sound."""
        given = self.some(choose) | {"along_y": (("y",), np.full(self.sizes["y"], 0.5))}
        with pytest.raises(ExportError, match="along_y"):
            self.store(choose, given, mode="r+")

    @invariant()
    def is_as_expected(self) -> None:
        if self.url:
            found = opened(self.url).variables
            assert found.keys() == self.expected.keys()
            for name, (dims, expected) in self.expected.items():
                assert found[name].dims == dims
                if expected.dtype.kind != "O":
                    assert found[name].dtype == expected.dtype
                np.testing.assert_array_equal(found[name], expected)

    def teardown(self) -> None:
        try:
            assert not [one for one in validate(self.url, data=True) if one.is_fault]
        finally:
            shutil.rmtree(self.folder)

    @property
    def sizes(self) -> dict[str, int]:
        return {dim: len(self.expected[f"along_{dim}"][1]) for dim in "tyx"}

    def some(self, choose: random.Random) -> Variables:
        """Choose variables that may be changed: not those that tell the sizes."""
        free = [name for name in self.expected if name[0] in "vn"]
        names = choose.sample(free, choose.randint(1, len(free)))
        return {name: self.expected[name] for name in names}

    def store(self, choose: random.Random, variables: Variables, **options: Any) -> None:
        """Write variables that are in memory, or blocks of dask."""
        dataset = xr.Dataset(variables)
        if choose.random() < 0.3:
            dataset = dataset.chunk({dim: choose.randint(1, 4) for dim in dataset.dims})
            options["align_chunks"] = True
        to_nczarr(dataset, self.url, **options)


def new(choose: random.Random, sizes: dict[str, int]) -> tuple[tuple[str, ...], Array]:
    """A variable of any type, with some of the dimensions in their order."""
    dims = tuple(dim for dim in sizes if choose.random() < 0.7)
    return dims, values(choose, np.dtype(choose.choice(TYPES)), [sizes[dim] for dim in dims])


def values(choose: random.Random, dtype: np.dtype[Any], shape: Any) -> Array:
    """Values of a type; dates are whole days, whose units express later dates, too."""
    if dtype.kind in "iuf":
        return numbers(choose, tuple(shape), dtype.str[1:])
    some = np.random.default_rng(choose.getrandbits(32)).integers(0, len(TEXTS), shape)
    if dtype.kind == "M":
        return np.asarray(FIRST + some * DAY)
    return np.asarray(TEXTS[some]) if dtype.kind == "O" else np.asarray(some % 2 == 0)


def chunks(choose: random.Random, variables: Variables) -> dict[str, dict[str, Any]]:
    """Encoding with chunks of any size for some variables."""
    return {
        name: {"chunksizes": tuple(choose.randint(1, size) for size in old.shape), "zlib": True}
        for name, (dims, old) in variables.items()
        if dims and choose.random() < 0.7
    }


@pytest.mark.filterwarnings("ignore:.*more than one chunk")
def test_history() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(max_examples=examples(60), stateful_step_count=8, deadline=None),
    )
