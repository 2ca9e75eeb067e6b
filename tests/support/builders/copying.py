"""What the tests of ``nczarr copy`` share."""

from __future__ import annotations

import pytest

from nczarr_xarray.cli.main import main


def copy(*arguments: object, status: int = 0) -> None:
    """Run ``nczarr copy`` in this process and check its exit status."""
    assert main(["copy", *map(str, arguments)]) == status


def failed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    """Run a copy that must fail; return its message."""
    copy(*arguments, status=status)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message
