"""Make the digests of a dataset, and check another one by them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from nczarr_fsspec.errors import StoreError
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.stored_source import chunk_lengths
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.compare.blocks import READ_BYTES, Blocks, block_lengths
from nczarr_xarray.tools.compare.manifest import Digests, Manifest, digest
from nczarr_xarray.tools.compare.reading import (
    Part,
    checked_sample,
    itemsize,
    opened,
    paths_of,
    read_parts,
)
from nczarr_xarray.tools.compare.report import Comparison, Difference
from nczarr_xarray.tools.compare.spelling import variable_type
from nczarr_xarray.tools.compare.structure import (
    Outline,
    differences,
    notes,
    readable_variables,
    unreadable,
)
from nczarr_xarray.tools.compare.tally import Tally

#: Bytes of the values of a digest, unless one chunk has more.
DIGEST_BYTES = 1 << 24


def write_digests(target: Any, path: str | os.PathLike[str]) -> None:
    """Write a manifest of a dataset, by which copies of it can be checked.

    Parameters
    ----------
    target
        Whatever `open_hierarchy` takes, or what it returned, which stays open.
    path
        The file to write, in JSON.

    Raises
    ------
    NCZarrError
        If something of the dataset cannot be read; there is no file then.
    """
    with ExitStack() as stack:
        side = opened(target, stack)
        variables = readable_variables(side.hierarchy.root)
        blocks = {
            name: Blocks(variable.shape, _lengths(variable)) for name, variable in variables.items()
        }
        tally = Tally(())
        parts = (
            Part((variables[name],), of_one.part(number))
            for name, of_one in blocks.items()
            for number in range(of_one.count)
        )
        found: dict[str, list[str]] = {name: [] for name in blocks}
        for part, (values,) in read_parts([side], parts, tally):
            found[part.path].append(digest(values))
        tally.finish(side, None)
        for error in tally.troubles:
            raise StoreError(os.fspath(path), f"is not written, for {error}")
        digests = {name: Digests(blocks[name], tuple(values)) for name, values in found.items()}
        Manifest(side.store.url, Outline.of(side), digests).write(path)


def check_digests(
    target: Any,
    path: str | os.PathLike[str],
    *,
    variables: Collection[str] | None = None,
    sample: int | None = None,
) -> Comparison:
    """Compare a dataset, A, with a manifest of `write_digests`, B.

    Parameters
    ----------
    target
        Whatever `open_hierarchy` takes, or what it returned, which stays open.
    path
        The file that `write_digests` or ``nczarr copy --digests`` wrote.
    variables, sample
        As of `compare`.

    Raises
    ------
    NCZarrError
        If the dataset or the file cannot be read, or an option has no meaning.
    """
    sample = checked_sample(sample)
    manifest = Manifest.load(path)
    with ExitStack() as stack:
        side = opened(target, stack)
        only = paths_of(variables, side, manifest.variables)
        stated = manifest.outline.of_variables(only).without(unreadable(side))
        outlines = Outline.of(side, only), stated
        tally = Tally(differences(*outlines), "blocks")
        for part, (values,) in read_parts([side], _parts(side, manifest, only, sample), tally):
            expected = manifest.variables[part.path]
            for number in expected.blocks.within(part.part):
                block = expected.blocks.part(number)
                inside: tuple[Any, ...] = tuple(
                    slice(s.start - whole.start, s.stop - whole.start)
                    for s, whole in zip(block, part.part, strict=True)
                )
                wanted = expected.values[number]
                if (actual := digest(values[(*inside, ...)])) != wanted:
                    place = ", ".join(f"{s.start}:{s.stop}" for s in block)
                    name = f"variable {part.path}"
                    first = Difference(name, f"digest of [{place}]", a=actual, b=wanted)
                    tally.differ(part.path, 1, [first])
        tally.finish(side, only)
        return tally.result(side.store.url, os.fspath(path), notes(*outlines))


def _lengths(variable: Variable, unit: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the blocks of digests; blocks to read them in, if `unit` is theirs."""
    grids = [chunk_lengths(variable.array, len(variable.shape))]
    most = DIGEST_BYTES if unit is None else READ_BYTES
    return block_lengths(variable.shape, itemsize(variable), grids, most, unit)


def _parts(
    side: Opened, manifest: Manifest, only: Collection[str] | None, sample: int | None
) -> Iterator[Part]:
    """Yield parts of the variables that have digests: of whole blocks, and good to read."""
    for path, variable in readable_variables(side.hierarchy.root).items():
        expected = manifest.variables.get(path)
        if expected is None or (only is not None and path not in only):
            continue
        stated = manifest.outline.facts.get(f"variable {path}", {}).get("type")
        if expected.blocks.shape != variable.shape or stated != variable_type(variable):
            continue
        blocks = expected.blocks
        if sample is None:
            blocks = Blocks(variable.shape, _lengths(variable, blocks.lengths))
        for number in blocks.numbers(sample):
            yield Part((variable,), blocks.part(number))
