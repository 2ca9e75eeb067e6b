"""Variables of an OPeNDAP server, through the netCDF library."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import AccessDeniedError, FormatError, StoreError
from nczarr_xarray.dataset.fragment_datasets import open_fragment
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.opendap import is_dap
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise
from tests.support.examples import examples
from tests.support.servers.dapserver import dap_server

DATA = np.arange(24, dtype="f4").reshape(4, 2, 3)


@pytest.fixture(scope="module")
def opened() -> Any:
    with dap_server("tas", DATA, ("time", "y", "x"), {"units": "K"}) as url:
        yield open_fragment(open_with, f"{url}#mode=dap2", None, "tas", depth=1, entire=False)


def test_metadata(opened: Any) -> None:
    variable = opened.variable
    assert [d.name for d in variable.dimensions] == ["time", "y", "x"]
    assert (variable.shape, variable.dtype) == (DATA.shape, DATA.dtype)
    assert variable.attributes["units"].value == "K"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(key=outer_keys(DATA.shape))
def test_orthogonal(opened: Any, key: tuple[Any, ...]) -> None:
    np.testing.assert_array_equal(opened.reader.read(key), outer(DATA, key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(key=point_keys(DATA.shape))
def test_points(opened: Any, key: tuple[Any, ...]) -> None:
    np.testing.assert_array_equal(opened.reader.read(key, points=True), pointwise(DATA, key))


def test_pickle(opened: Any) -> None:
    again = pickle.loads(pickle.dumps(opened.reader))
    np.testing.assert_array_equal(again.read(), DATA)


@pytest.mark.slow
def test_a_server_that_is_asked_what_it_is() -> None:
    with dap_server("tas", DATA, ("time", "y", "x"), {}) as url:
        found = open_fragment(open_with, url, None, "tas", depth=1, entire=False)
        np.testing.assert_array_equal(found.reader.read(), DATA)
        with pytest.raises(FormatError, match="has no variable 'pr'"):
            open_fragment(open_with, url, None, "pr", depth=1, entire=False)


@pytest.mark.parametrize(
    ("line", "allow", "refused"),
    [
        ("HTTP.CREDENTIALS.USERPASSWORD=a:hunter22", False, True),
        ("HTTP.SSL.CERTIFICATE=/d/me.pem", False, True),
        ("[https://h.org]HTTP.CREDENTIALS.USERPASSWORD=a:b", False, False),
        ("HTTP.TIMEOUT=60", False, False),
        ("HTTP.CREDENTIALS.USERPASSWORD=a:b", True, False),
    ],
)
@pytest.mark.parametrize("form", ["{}#mode=dap2", "{}"])
@pytest.mark.slow
def test_what_netcdf_would_send_to_all(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    allow: bool,
    refused: bool,
    form: str,
) -> None:
    (tmp_path / "rc").write_text(line)
    monkeypatch.setenv("NCRCENV_RC", str(tmp_path / "rc"))
    with dap_server("tas", DATA, ("time", "y", "x"), {}) as url:
        policy = AddressPolicy.of("/d/m.nca", allow={url: {}} if allow else None)
        target = policy.resolve(form.format(url))
        options = policy.options(target)
        if not refused:
            found = open_fragment(open_with, target, options, "tas", depth=1, entire=False)
            np.testing.assert_array_equal(found.reader.read(), DATA)
            return
        with pytest.raises(AccessDeniedError, match=r"netCDF-C sends it what \.ncrc") as caught:
            open_fragment(open_with, target, options, "tas", depth=1, entire=False)
        assert "hunter22" not in str(caught.value)


def test_what_netcdf_would_read_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCRCENV_RC", raising=False)
    (tmp_path / ".dodsrc").write_text("HTTP.PROXY.SERVER=http://127.0.0.1:1")
    told = r"netCDF-C asks, and that would follow HTTP\.PROXY\.SERVER of the working"
    with pytest.raises(AccessDeniedError, match=told):
        open_fragment(open_with, "http://h.test/x#dap2", {}, "x", depth=1, entire=False)


@pytest.mark.parametrize("address", ["dods://h.org/x", "dap4://h.org/x", "https://h.org/x#dap2"])
def test_servers_that_a_dataset_names_are_addressed(address: str) -> None:
    policy = AddressPolicy.of("/d/m.nca")
    assert policy.options(policy.resolve(address))["addressed"] is True


def test_a_server_that_is_gone() -> None:
    with pytest.raises(
        StoreError, match=r"http://127\.0\.0\.1:9/x#dap2: cannot be read by OPeNDAP"
    ):
        open_fragment(open_with, "http://127.0.0.1:9/x#dap2", None, "tas", depth=1, entire=False)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://h/x#dap2", True),
        ("https://h/x#mode=dap4", True),
        ("https://h/x#mode=bytes,dap4", True),
        ("dods://h/x", True),
        ("https://h/x", False),
        ("https://h/dap2#mode=bytes", False),
        ("/d/x#dap2", False),
    ],
)
def test_what_names_the_protocol(target: str, expected: bool) -> None:
    assert is_dap(target) is expected
