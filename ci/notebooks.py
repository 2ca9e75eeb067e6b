#!/usr/bin/env python3
"""Run the notebooks of the documentation, and keep what they print.

    python ci/notebooks.py            run docs/*.ipynb and write their outputs into them
    python ci/notebooks.py --check    run them; say where the text of an output is another one

Each runs in an empty folder, which is called /data in what it prints. Pictures and numbers are not
compared: sizes of files, say, depend on the versions of libraries.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
#: What the folder of a run is called in outputs, so that these are the same on every machine.
SHOWN = "/data"


def run(path: Path) -> dict[str, Any]:
    """Run a notebook, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        at = os.path.realpath(folder)
        # Python of the kernel finds this checkout, not another one that may be installed
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        client = NotebookClient(notebook, kernel_name="python3", timeout=300)
        client.execute(cwd=at)
        text = json.dumps(cleaned(notebook), ensure_ascii=False, indent=1)
        found: dict[str, Any] = json.loads(text.replace(json.dumps(at)[1:-1], SHOWN))
    return found


def cleaned(notebook: Any) -> Any:
    """Return a notebook without what differs between machines and runs."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    return notebook


def texts(notebook: dict[str, Any]) -> list[str]:
    """Return the lines of text that a notebook prints, each number as #."""
    found = []
    for cell in notebook["cells"]:
        printed = ""  # on a busy machine it comes in pieces, which may end within a line
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                printed += "".join(output["text"])
            elif "image/png" not in output.get("data", {}):
                found += "".join(output.get("data", {}).get("text/plain", "")).splitlines()
        found += printed.splitlines()
    found = [line.replace("\\", "/") for line in found]  # in paths of Windows
    return [" ".join(re.sub(r"[-+]?\d[\d.,e]*", "#", line).split()) for line in found]


def differences(path: Path) -> list[str]:
    """Run a notebook; return the lines that it does not print as it is committed."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    return list(difflib.unified_diff(texts(kept), texts(run(path)), path.name, "now", lineterm=""))


def main() -> int:
    """Run all notebooks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args()
    status = 0
    for path in NOTEBOOKS:
        if args.check:
            lines = differences(path)
            print("\n".join(lines) if lines else f"{path.name}: as it is")
            status |= bool(lines)
        else:
            text = json.dumps(run(path), ensure_ascii=False, indent=1)
            path.write_text(text + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
