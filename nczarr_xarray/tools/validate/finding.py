"""Findings of each severity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nczarr_xarray.tools.finding import Finding

Make = Callable[..., Finding]
error: Make = partial(Finding, "error")
warning: Make = partial(Finding, "warning")
note: Make = partial(Finding, "note")


def counts(finding: Finding) -> bool:
    """Tell whether a dataset with this finding is not sound."""
    return finding.severity != "note"
