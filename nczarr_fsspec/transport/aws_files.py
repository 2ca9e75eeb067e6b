"""Whether the files and variables have changed in which botocore finds credentials by itself."""

from __future__ import annotations

import os
from typing import TypeAlias

#: path, time, size and inode of a file
State: TypeAlias = tuple[str, int, int, int]

#: variables that name the files of the AWS tools, and where these are by default
_FILES = (
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
)


def file_states() -> tuple[State, ...]:
    """Return the states of the files with profiles."""
    named = (os.environ.get(variable) or default for variable, default in _FILES)
    return tuple(map(_state, map(os.path.expanduser, named)))


def credentials_state() -> int:
    """Return a number that changes with the files with profiles and the variables ``AWS_*``."""
    variables = (pair for pair in os.environ.items() if pair[0].startswith("AWS_"))
    return hash((file_states(), frozenset(variables)))


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, status.st_mtime_ns, status.st_size, status.st_ino
