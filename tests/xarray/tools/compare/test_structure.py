"""Structure as facts: no two objects have one name, and what belongs to what is known."""

from __future__ import annotations

import json
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray import compare, to_nczarr
from nczarr_xarray.model import Attribute, Group, Variable
from nczarr_xarray.tools.compare.structure import Outline, differences, facts

NAMES = st.text(st.sampled_from("a:\\ "), min_size=1, max_size=4)


def with_attributes(names: list[tuple[str, str]]) -> Outline:
    """The outline of variables with attributes, by pairs of their names."""
    root = Group()
    for name, attribute in names:
        new = Variable(name, "/", (), "int", np.dtype("i4"))
        variable = root.variables.setdefault(name, new)
        variable.attributes[attribute] = Attribute(attribute, "int", np.array([1], "i4"))
    return Outline(facts(root), pure=False)


@given(st.sets(st.tuples(NAMES, NAMES)), st.sets(st.tuples(NAMES, NAMES)))
def test_names_with_colons_are_kept_apart(
    one: set[tuple[str, str]], other: set[tuple[str, str]]
) -> None:
    a, b = with_attributes(sorted(one)), with_attributes(sorted(other))
    of_a, of_b = ({name for name, _ in side} for side in (one, other))
    both = of_a & of_b
    expected = sum(name in both for name, _ in one ^ other) + len(of_a ^ of_b)
    assert len(list(differences(a, b))) == expected
    attributes = [name for name in a.facts if name.startswith("attribute")]
    assert len(attributes) == len(one)
    for name in of_a:
        own = a.of_variables({f"/{name}"})
        rest = a.without({f"/{name}"})
        assert len(own.facts) == 1 + sum(of == name for of, _ in one)
        assert len(own.facts) + len(rest.facts) == len(a.facts)


def test_a_variable_that_cannot_be_read_is_not_said_to_be_lacking(tmp_path: Path) -> None:
    dataset = xr.Dataset({name: ("x", np.arange(3)) for name in "vw"})
    to_nczarr(dataset, tmp_path / "a")
    to_nczarr(dataset, tmp_path / "b")
    (tmp_path / "b" / "v" / ".zarray").write_text("{}")
    for one, other in ("ab", "ba"):
        found = compare(tmp_path / one, tmp_path / other)
        assert found.differences == ()
        assert found.status == 2
        assert found.values == 3
    assert compare(tmp_path / "a", tmp_path / "b", variables=["w"]).equal


def test_zarr_is_compared_by_what_it_states(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("unused", 2)
        group = file.createGroup("g")
        group.createVariable("v", "f4", ("time",))[:] = [1, 2]
        group.setncatts({"number": np.int8(5), "ratio": np.float32(0.1)})
    with xr.open_datatree(tmp_path / "x.nc", decode_cf=False) as tree:
        tree["g/v"].encoding["_FillValue"] = None  # else it would be NaN
        tree.to_zarr(tmp_path / "y.zarr", zarr_format=2, consolidated=False)
    found = compare(tmp_path / "x.nc", tmp_path / "y.zarr")
    assert found.notes
    assert json.loads(json.dumps(found.as_json()))["notes"] == list(found.notes)
    assert found.equal, str(found)
