"""The version of this package, which `pyproject.toml` takes from here, and what a report needs."""

from __future__ import annotations

from typing import TextIO

__version__ = "0.1.0"


def show_versions(file: TextIO | None = None) -> None:
    """Print the versions of Python, of the system, and of the packages that this one can use.

    Then come what this process keeps for later reads, and how much it may keep, in bytes.

    Parameters
    ----------
    file
        The file to print to; by default standard output.
    """
    import platform
    import re
    from importlib import metadata

    from nczarr_fsspec.ranges import index_memory
    from nczarr_xarray.chunks.cache import CACHE

    print(f"python: {platform.python_version()}\nsystem: {platform.platform()}", file=file)
    ours = "nczarr-xarray"
    needed = (re.match(r"[A-Za-z0-9._-]+", line) for line in metadata.requires(ours) or ())
    for name in [ours, *sorted({match[0] for match in needed if match})]:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "-"
        print(f"{name}: {found}", file=file)
    files, nbytes = index_memory.memory.size
    most = f"{index_memory.MOST_FILES} files, {index_memory.MOST_BYTES}"
    print(f"decoded chunks: {CACHE.nbytes} of {CACHE.most}", file=file)
    print(f"metadata of remote files: {files} files, {nbytes} of {most}", file=file)
