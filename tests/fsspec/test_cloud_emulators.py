"""What the table of filesystems says of Google's and Azure's stores, with emulators of them.

They need packages that the other tests go without: an environment of their own, which
`python3 ci/run.py filesystems` makes, and continuous integration too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The environment with the packages, or this one, which may have them.
PYTHON = ROOT / ".venv-filesystems" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["gs", "abfs"])
def test_all_that_the_table_says(name: str) -> None:
    python = PYTHON if PYTHON.exists() else sys.executable
    done = subprocess.run(
        [python, ROOT / "ci" / "filesystems.py", "--row", name],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])
    if cells is None:
        pytest.skip(f"NO EMULATOR TRIED: {done.stderr.strip()}; python3 ci/run.py filesystems")
    (row,) = (
        line
        for line in (ROOT / "docs" / "compatibility.md").read_text("utf-8").splitlines()
        if line.startswith(f"| `{name}://`")
    )
    assert row.strip("| ").split(" | ")[3:] == cells, done.stderr
