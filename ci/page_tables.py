"""Tables of pages that scripts make, between ``<!-- NAME begin -->`` and ``<!-- NAME end -->``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def between(text: str, name: str) -> str:
    """Return what is between the marks."""
    return text.split(f"<!-- {name} begin -->\n")[1].split(f"<!-- {name} end -->", maxsplit=1)[0]


def replaced(text: str, tables: Mapping[str, Iterable[str]]) -> str:
    """Return the page with other lines between the marks, by their names."""
    for name, lines in tables.items():
        begin, end = f"<!-- {name} begin -->\n", f"<!-- {name} end -->"
        head, rest = text.split(begin)
        text = head + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.split(end)[1]
    return text


def main(
    path: Path, description: str | None, make: Callable[[], Mapping[str, Iterable[str]]]
) -> int:
    """Write the tables of a page, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if it differs")
    args = parser.parse_args()
    old = path.read_text(encoding="utf-8")
    new = replaced(old, make())
    if args.check:
        print("as it is" if old == new else f"{path.name} differs")
        return int(old != new)
    path.write_text(new, encoding="utf-8")
    return 0
