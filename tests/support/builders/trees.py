"""Trees of files as mappings from paths to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def read_tree(folder: Path, above: str = "") -> dict[str, bytes]:
    """All files below a folder by their paths in it, behind what is `above`."""
    return {
        f"{above}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write what `read_tree` reads."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
