"""Where the time of the small-chunk read goes: a flame graph, and shares by kind of work.

py-spy samples a process that reads 10,000 shuffled zlib chunks of 16 KB again and again, without
stopping it (a stopped process is found in system calls more often than it is there). The picture is
drawn here, for py-spy's own has scripts and is interactive, which a page in a repository is not.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import xarray as xr
from data import Array
from harness import Options, insert

SECONDS, RATE = 15, 500
WIDTH, ROW = 1000, 17
#: What a function does, by its name in a sample; the rest is the engine's own Python.
KINDS = {
    "inflate (libdeflate)": ("decompress.py",),
    "unshuffle (blosc)": ("unshuffle", "unshuffle_into"),
    "copy into the result": ("Scatter.row", "Scatter.one"),
    "read files": ("_small", "_open", "read_at", "DirectoryStore.get", "directory.py"),
}
COLOURS = ("#1b7837", "#5aae61", "#a6dba0", "#3690c0", "#fdae61")
REST = "Python of the engine"

Stacks = Counter[tuple[str, ...]]


def run(options: Options) -> Stacks:
    """Samples by stack, from the engine's threads; callers first."""
    side = max(640, int(6400 * options.scale) // 64 * 64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = Array((side, side), (64, 64), "shuffled zlib").write(folder)
        output = folder / "samples.txt"
        command = ["py-spy", "record", "--nonblocking", "--function", "--rate", str(RATE)]
        command += ["--duration", str(SECONDS), "--format", "raw", "--output", str(output), "--"]
        command += [sys.executable, __file__, str(stored.tree), str(SECONDS + 2)]
        subprocess.run(command, check=True, capture_output=True)
        return parsed(output.read_text())


def parsed(text: str) -> Stacks:
    """py-spy's raw format: frames separated by semicolons, then a count."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        names = [frame.replace("<locals>.", "") for frame in frames.split(";")]
        at = next((i for i, name in enumerate(names) if name.startswith("ChunkReader.read")), None)
        work = next((i for i, name in enumerate(names) if name.startswith("GridPieces.take")), at)
        if work is not None:
            stacks[tuple(names[work:])] += int(count)
    return stacks


def kind(stack: tuple[str, ...]) -> str:
    leaf = stack[-1]
    return next((k for k, marks in KINDS.items() if any(m in leaf for m in marks)), REST)


def shares(stacks: Stacks) -> dict[str, float]:
    total = stacks.total()
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        found[kind(stack)] += count
    return {name: found[name] / total for name in (*KINDS, REST)}


def table(stacks: Stacks) -> str:
    lines = ["| work | share of the samples |", "|---|---|"]
    return "\n".join(
        lines + [f"| {name} | {100 * s:.0f} % |" for name, s in shares(stacks).items()]
    )


def draw(stacks: Stacks) -> str:
    """The stacks as SVG: callers below, widths by samples."""
    colours = dict(zip((*KINDS, REST), COLOURS, strict=True))
    boxes: list[str] = []
    deepest = 0

    def level(part: Stacks, depth: int, left: float, width: float) -> None:
        nonlocal deepest
        children: dict[str, Stacks] = {}
        for stack, count in part.items():
            if len(stack) > depth:
                children.setdefault(stack[depth], Counter())[stack] += count
        total = part.total()
        for name, child in sorted(children.items()):
            share = width * child.total() / total
            if share < 2:
                left += share
                continue
            deepest = max(deepest, depth)
            ends = Counter(kind(stack) for stack in child.elements())
            short = html.escape(name.partition(" (")[0])
            text = short if len(short) * 6.2 < share else short[: max(0, int(share / 6.2) - 1)]
            boxes.append(
                f'<g transform="translate({left:.1f},{{{depth}}})"><title>{html.escape(name)}: '
                f"{100 * child.total() / stacks.total():.1f} %</title>"
                f'<rect width="{share - 0.5:.1f}" height="{ROW - 1}" '
                f'fill="{colours[ends.most_common(1)[0][0]]}"/>'
                f'<text x="3" y="12">{text}</text></g>'
            )
            level(child, depth + 1, left, share)
            left += share

    level(stacks, 0, 0, WIDTH)
    height = (deepest + 1) * ROW
    rows = {str(depth): height - (depth + 1) * ROW for depth in range(deepest + 1)}
    for depth, y in rows.items():
        boxes = [box.replace(f"{{{depth}}}", str(y), 1) for box in boxes]
    part = shares(stacks)
    legend = "".join(
        f'<rect x="{i * 190}" y="{height + 8}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{i * 190 + 16}" y="{height + 18}">{name}: {100 * part[name]:.0f} %</text>'
        for i, (name, colour) in enumerate(colours.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 26}" '
        f'font-family="monospace" font-size="10">{"".join(boxes)}{legend}</svg>\n'
    )


def save(stacks: Stacks, _options: Options, _command: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flame.svg").write_text(draw(stacks))
    insert(folder, "flame", "![The calls of this read](flame.svg)")


def main() -> None:
    """What is sampled."""
    ds = xr.open_dataset(sys.argv[1], engine="nczarr", cache=False)
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        _ = ds["v"].values


if __name__ == "__main__":
    main()
