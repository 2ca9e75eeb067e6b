"""What xarray, help and completion show of the engine."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import xarray as xr
from xarray.backends.plugins import detect_parameters

from nczarr_fsspec.errors import DatasetNotFoundError


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


def test_errors_of_local_targets_import_no_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error may be that no more files can be opened, and an import would raise it raw."""
    name = "nczarr_fsspec.places.names"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(DatasetNotFoundError):
        xr.open_dataset(tmp_path / "none.nc", engine="nczarr")
    assert name not in sys.modules
