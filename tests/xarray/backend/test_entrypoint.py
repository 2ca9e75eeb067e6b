"""What xarray, help and completion show of the engine."""

from __future__ import annotations

import inspect

import pytest
import xarray as xr
from xarray.backends.plugins import detect_parameters


def test_the_engine_is_described() -> None:
    engine = xr.backends.list_engines()["nczarr"]
    assert engine.url.startswith("https://")
    assert engine.description in repr(engine)
    assert engine.url in repr(engine)


@pytest.mark.parametrize("name", ["open_dataset", "open_datatree", "open_groups_as_dict"])
def test_every_option_is_shown(name: str) -> None:
    engine = xr.backends.list_engines()["nczarr"]
    shown = detect_parameters(getattr(engine, name))  # raises if there are `**options`
    assert shown == engine.open_dataset_parameters
    assert {"group", "storage_options", "allow", "drop_variables", "use_cftime"} <= set(shown)
    documented = inspect.getdoc(type(engine).open_dataset) or ""
    for option in shown[shown.index("group") :]:  # those before are xarray's own
        assert f"\n{option} : " in documented
