"""What to install where a package that a protocol needs is missing."""

from __future__ import annotations

_S3 = "'nczarr-xarray[s3]'"
_REMOTE = "'nczarr-xarray[remote]'"
#: Of the protocols that are not ours to list, fsspec itself names the package.
_INSTALL = {
    **dict.fromkeys(("http", "https"), _REMOTE),
    **dict.fromkeys(("s3", "s3a", "gs3"), _S3),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
}


def missing_package(protocol: str | None, error: ImportError, shown: str = "") -> ImportError:
    """Turn fsspec's error about a missing package into one that says what to install.

    Parameters
    ----------
    protocol
        The one whose package is missing: the innermost of a chain.
    shown
        Names the target.
    """
    reason = f"{shown}: {error}" if shown else str(error)
    install = _INSTALL.get(protocol or "")
    if install is not None and "pip install" not in reason:
        reason = f"{reason}: pip install {install}"
    return ImportError(reason)
