#!/usr/bin/env python3
"""Draw the folders of both packages, and the imports among them, as docs/img/modules.svg.

    python3 ci/picture.py           draw it
    python3 ci/picture.py --check   say whether it is as it would be drawn, and change nothing

An arrow points from the folder that imports to the one that is imported. Arrows that follow from
others are left out: of a -> b -> c and a -> c, the last one. Of modules that lie in no folder,
those that no folder imports share one box ("opening"), and so do those that import none
("basics"). Imports for type checkers alone do not count. Folders that import each other, directly
or not, are an error.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "img" / "modules.svg"
PACKAGES = ("nczarr_xarray", "nczarr_fsspec")
#: What is no part of the program.
_OUTSIDE = ("demo_data", "__main__", "_version")

Arrows = dict[str, set[str]]

Point = tuple[float, float]

BOX, HEIGHT, ACROSS, DOWN, MARGIN, LETTER, COLUMN = 116, 34, 26, 40, 16, 7, 400
#: Where a row may be, from the middle of its column.
SHIFTS = (0, -60, 60, -110, 110)
_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}">
<title>Folders of nczarr_xarray (blue) and nczarr_fsspec (green), and what they import</title>
<style>
text {{ font: 13px sans-serif; text-anchor: middle }}
rect, .arrow {{ stroke: #5b6b7b }}
.arrow {{ fill: none; marker-end: url(#tip) }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto"><path d="M0 0L8 4L0 8z" fill="#5b6b7b"/></marker></defs>
<rect width="{width:g}" height="{height}" style="fill: #fff; stroke: none"/>
{content}
</svg>
"""
_COLOURS = {"nczarr_xarray": "#e3edf9", "nczarr_fsspec": "#e8f3e3"}


def modules() -> dict[str, Path]:
    """Find the modules of both packages, by name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if len(parts) == 1 or parts[1] not in _OUTSIDE:
                found[".".join(parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Find the modules among `known` that the one at `path` imports, also in functions."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        pending += ast.iter_child_nodes(node)


def folder_of(module: str, known: dict[str, Path]) -> str:
    """Name the folder that a module is in; a module in no folder by itself."""
    package, _, rest = module.partition(".")
    name = f"{package}.{rest.partition('.')[0]}" if rest else package
    return name if known[name].name == "__init__.py" and rest else module


def arrows() -> Arrows:
    """Find which boxes import which others.

    Raises
    ------
    CycleError
        If some import each other.
    """
    known = modules()
    direct: Arrows = {}
    for module, path in known.items():
        used = {folder_of(name, known) for name in imports(path, known)}
        direct.setdefault(folder_of(module, known), set()).update(used)
    folders = {name for name in direct if known[name].name == "__init__.py" and "." in name}
    order = list(TopologicalSorter({a: used - {a} for a, used in direct.items()}).static_order())
    below: Arrows = {}
    for name in order:
        below[name] = {name}.union(*(below[used] for used in direct[name] - {name}))

    def box(name: str) -> str:
        if name in folders or "." not in name:
            return name
        package = name.partition(".")[0]
        if not below[name] & folders:
            return f"{package}.below"
        between = any(name in below[other] for other in folders if other.startswith(package))
        return name if between else f"{package}.above"

    found: Arrows = {}
    for name, used in direct.items():
        found.setdefault(box(name), set()).update(map(box, used))
    found = {name: used - {name} for name, used in found.items()}
    for name in PACKAGES:  # nothing is in it but names for users
        if not found[name]:
            del found[name]
    TopologicalSorter(found).prepare()
    return found


def reduced(found: Arrows) -> Arrows:
    """Leave out arrows that follow from others."""
    below: Arrows = {}
    for name in TopologicalSorter(found).static_order():
        below[name] = found[name].union(*(below[used] for used in found[name]))
    return {
        name: {b for b in used if not any(b in below[other] for other in used - {b})}
        for name, used in found.items()
    }


def levels(found: Arrows) -> list[list[str]]:
    """Put the boxes into rows, each one above all that it imports, at the least height."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(found).static_order():
        height[name] = max((height[used] + 1 for used in found[name]), default=0)
    rows: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for name in sorted(height):
        rows[-1 - height[name]].append(name)
    return rows


def label(name: str) -> str:
    """Tell what is written in a box."""
    package, _, rest = name.partition(".")
    kinds = {"": package, "above": f"{package}: opening", "below": f"{package}: basics"}
    return kinds.get(rest, rest)


def curve(start: Point, end: Point) -> tuple[Point, Point, Point, Point]:
    """Return the points of the Bezier curve from a box to one that lies lower."""
    (x, y), (to, stop) = (start[0], start[1] + HEIGHT), (end[0], end[1] - 2)
    bend = (stop - y) / 2
    return (x, y), (x, y + bend), (to, stop - bend), (to, stop)


def hidden(places: dict[str, Point], widths: dict[str, int], found: Arrows) -> int:
    """Count the points of arrows that lie behind boxes which they have nothing to do with."""
    count = 0
    for name, used in found.items():
        for other in used:
            points = curve(places[name], places[other])
            for step in range(1, 30):
                t = step / 30
                weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                x, y = (
                    sum(w * point[axis] for w, point in zip(weights, points, strict=True))
                    for axis in (0, 1)
                )
                count += sum(
                    abs(x - at) < widths[box] / 2 + 6 and top - 4 < y < top + HEIGHT + 4
                    for box, (at, top) in places.items()
                    if box not in (name, other)
                )
    return count


def arranged(rows: list[list[str]], widths: dict[str, int], found: Arrows) -> dict[str, Point]:
    """Place the boxes: one package left, the other right, and each row where it hides least."""
    parts = [[[n for n in row if n.partition(".")[0] == p] for row in rows] for p in PACKAGES]
    places: dict[str, Point] = {}

    def put(part: int, number: int, shift: float) -> None:
        row = parts[part][number]
        x = COLUMN * (part + 0.5) + shift - sum(widths[n] + ACROSS for n in row) / 2
        for name in row:
            places[name] = x + (widths[name] + ACROSS) / 2, MARGIN + number * (HEIGHT + DOWN)
            x += widths[name] + ACROSS

    every = [(part, number) for number in range(len(rows)) for part in (0, 1)]
    for part, number in every:
        put(part, number, 0)
    for _ in range(3):
        for part, number in every:

            def cost(shift: float, part: int = part, number: int = number) -> tuple[int, float]:
                put(part, number, shift)
                return hidden(places, widths, found), abs(shift)

            put(part, number, min(SHIFTS, key=cost))
    return places


def draw(found: Arrows) -> str:
    """Draw the picture, as SVG."""
    rows, arrows_drawn = levels(found), reduced(found)
    widths = {name: max(BOX, int(len(label(name)) * LETTER) + 24) for name in found}
    places = arranged(rows, widths, arrows_drawn)
    content = []
    for name, used in sorted(arrows_drawn.items()):
        for other in sorted(used):
            first, *rest = (f"{x:g} {y:g}" for x, y in curve(places[name], places[other]))
            content.append(f'<path d="M{first}C{" ".join(rest)}" class="arrow"/>')
    for name, (x, y) in sorted(places.items()):
        colour, width = _COLOURS[name.partition(".")[0]], widths[name]
        size = f'width="{width}" height="{HEIGHT}"'
        content += (
            f'<rect x="{x - width / 2:g}" y="{y:g}" {size} fill="{colour}"/>',
            f'<text x="{x:g}" y="{y + 22:g}">{escape(label(name))}</text>',
        )
    height = len(rows) * (HEIGHT + DOWN) - DOWN + 2 * MARGIN
    return _FRAME.format(width=2 * COLUMN, height=height, content="\n".join(content))


def main() -> int:
    """Draw the picture, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    try:
        picture = draw(arrows())
    except CycleError as error:
        print(f"a circle of imports: {' -> '.join(error.args[1])}")
        return 1
    if not check:
        PICTURE.write_text(picture)
    elif not PICTURE.exists() or PICTURE.read_text() != picture:
        print(f"{PICTURE.relative_to(ROOT)} is not as the modules are: run ci/picture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
