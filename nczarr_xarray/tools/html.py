"""What the tools find as HTML, for notebooks: in one style, with chunk grids as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

_COLOURS = {"error": "#c8553d", "warning": "#b7791f", "note": "#2b6cb0"}


class Markup(str):
    """HTML, which is shown as it is; all other text is escaped."""

    __slots__ = ()


def report(title: str, *parts: str) -> str:
    """Return a report of a title and parts, which `table` and `paragraphs` have made."""
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}</div>"


def paragraphs(lines: Iterable[str]) -> str:
    """Return lines of text, one below the other."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table; ``""`` if it has no rows.

    Parameters
    ----------
    numbers
        Columns at its end that are aligned to the right.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        left = len(cells) - numbers
        sides = ("left" if column < left else "right" for column in range(len(cells)))
        found = (
            f'<{tag} style="text-align:{side}">'
            f"{cell if isinstance(cell, Markup) else escape(cell)}</{tag}>"
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(line("td", row) for row in rows)
    above = f"<thead>{line('th', head)}</thead>" if head else ""
    return f"<table>{above}<tbody>{body}</tbody></table>" if body else ""


def severity(word: str) -> Markup:
    """Return the severity of a finding in its colour."""
    return Markup(f'<span style="color:{_COLOURS[word]}">{word}</span>')


# -- chunk grid svg ------------------------------------------------------------------------------
# A chunk grid as a picture: the box that an array is, with the borders of its chunks.


#: In pixels: the longest side, the least of any, and the least between two lines.
_SIDE, _LEAST, _BETWEEN = 90, 8.0, 3.0
#: How far a step back goes to the right and up, and the room for a number, in pixels.
_OBLIQUE, _MARGIN = 0.4, 14


def chunk_grid_svg(shape: Sequence[int], grid: Sequence[int]) -> str:
    """Draw the last three dimensions of a chunk grid as SVG.

    Parameters
    ----------
    shape
        Of the array, none of it zero.
    grid
        The number of chunks along each dimension.
    """
    depth, height, width = (1, 1, 1, *shape)[-3:]
    layers, rows, columns = (1, 1, 1, *grid)[-3:]
    scale = _SIDE / max(depth, height, width)
    wide, high = max(_LEAST, width * scale), max(_LEAST, height * scale)
    back = max(_LEAST, depth * scale * _OBLIQUE) if len(shape) > 2 else 0.0
    across, down = _borders(columns, wide), _borders(rows, high)
    lines = [
        *(f"M0 {back + high * at:.1f}h{wide:.1f}" for at in down),
        *(f"M{wide * at:.1f} {back:.1f}v{high:.1f}" for at in across),
    ]
    if back:
        slope = f"l{back:.1f} {-back:.1f}"
        lines += [
            *(f"M{wide * at:.1f} {back:.1f}{slope}" for at in across),
            *(f"M{wide:.1f} {back + high * at:.1f}{slope}" for at in down),
            *(
                f"M{back * at:.1f} {back - back * at:.1f}h{wide:.1f}v{high:.1f}"
                for at in _borders(layers, back)
            ),
        ]
    outline = f"M0 {back:.1f}l{back:.1f} {-back:.1f}h{wide:.1f}v{high:.1f}l{-back:.1f} {back:.1f}"
    size = f"{wide + back + 5 * _MARGIN:.0f}", f"{high + back + _MARGIN:.0f}"
    return (  # pages that scale pictures need the box; without it they cut them
        f'<svg width="{size[0]}" height="{size[1]}" viewBox="0 0 {" ".join(size)}" font-size="11">'
        f'<path d="{outline}h{-wide:.1f}z" fill="#e3edf9"/>'
        f'<path d="{"".join(lines)}" stroke="#5b6b7b" fill="none"/>'
        f"{''.join(_numbers(shape, wide, high, back))}</svg>"
    )


def _numbers(shape: Sequence[int], wide: float, high: float, back: float) -> Iterator[str]:
    """Yield the lengths of the dimensions beside the box."""
    places = [
        (0, back + high + _MARGIN - 2),
        (wide + back + 3, high / 2 + 4),
        (wide + back / 2 + 3, back / 2 + high + 8),
    ]
    for length, (x, y) in zip(reversed(shape), places, strict=False):
        yield f'<text x="{x:.0f}" y="{y:.0f}" fill="currentColor">{length:,}</text>'


def _borders(count: int, length: float) -> list[float]:
    """Return where the borders of `count` chunks are between 0 and 1, or as many as fit."""
    shown = min(count, max(1, int(length / _BETWEEN)))
    return [number / shown for number in range(shown + 1)]
