"""Disks that are full, or soon will be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(folder: Path, options: str = "size=1M") -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command: a full disk was not tried")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs needs root, so this was not tried: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, as often as it has (Linux)."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of this listing
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if os.path.dirname(path) == os.path.realpath(folder)]
