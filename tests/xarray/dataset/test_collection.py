"""The garbage collector pauses while metadata are built, and goes on as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from nczarr_xarray.formats.rounds import collection_paused


@pytest.fixture(params=[True, False], autouse=True)
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


def test_pauses_nest(enabled: bool) -> None:
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_it_goes_on_after_an_error(enabled: bool) -> None:
    with pytest.raises(ValueError, match="wrong"), collection_paused():
        raise ValueError("wrong")
    assert gc.isenabled() == enabled
