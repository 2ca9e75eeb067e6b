"""The datasets of which doctor predicts reads; made once, for two modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from nczarr_xarray.cli.main import main
from tests.xarray.tools.doctor.test_prediction import FILES, write


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `FILES`, and one of them as a tree, which no test changes."""
    folder = tmp_path_factory.mktemp("predicted")
    for name, options in FILES.items():
        write(folder / name, **options)
    assert main(["copy", f"{folder}/small.nc", f"{folder}/tree.nczarr"]) == 0
    return folder
