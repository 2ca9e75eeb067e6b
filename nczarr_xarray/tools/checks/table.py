"""The table of checks: what doctor, validate and check look for, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from nczarr_xarray.tools.checks import (
    Finding,
    chunks,
    cmip7,
    documents,
    layout,
    leftovers,
    metadata,
    objects,
)
from nczarr_xarray.tools.checks.subject import Subject

Tool: TypeAlias = Literal["doctor", "validate", "check"]


class Reads(IntEnum):
    """What a check reads of a dataset; more than what is before it."""

    METADATA = 1
    LISTING = 2
    DATA = 3


class Check(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    run
        Yields what it finds.
    tools
        That run it.
    cost
        What it reads.
    """

    run: Callable[[Subject], Iterator[Finding]]
    tools: tuple[Tool, ...]
    cost: Reads


_DOCTOR: tuple[Tool, ...] = ("doctor",)
_VALIDATE: tuple[Tool, ...] = ("validate",)
_CHECK: tuple[Tool, ...] = ("check",)

#: In the order of their findings. A new check is a function and a row.
CHECKS = (
    Check(layout.unreadable, _DOCTOR, Reads.METADATA),
    Check(layout.not_examined, _DOCTOR, Reads.METADATA),
    Check(layout.problems, _DOCTOR, Reads.METADATA),
    Check(layout.slow_opening, _DOCTOR, Reads.METADATA),
    Check(layout.index, _DOCTOR, Reads.METADATA),
    Check(layout.small_chunks, _DOCTOR, Reads.METADATA),
    Check(layout.large_chunks, _DOCTOR, Reads.METADATA),
    Check(layout.shards, _DOCTOR, Reads.METADATA),
    Check(layout.single_steps, _DOCTOR, Reads.METADATA),
    Check(layout.coordinates, _DOCTOR, Reads.METADATA),
    Check(layout.padding, _DOCTOR, Reads.METADATA),
    Check(layout.lost_space, _DOCTOR, Reads.METADATA),
    Check(layout.codecs, _DOCTOR, Reads.METADATA),
    Check(layout.not_consolidated, _DOCTOR, Reads.METADATA),
    Check(layout.fragments, _DOCTOR, Reads.METADATA),
    Check(metadata.opening, ("validate", "check"), Reads.METADATA),
    Check(leftovers.incomplete, _VALIDATE, Reads.LISTING),
    Check(leftovers.journal, _VALIDATE, Reads.LISTING),
    Check(leftovers.locks, _VALIDATE, Reads.LISTING),
    Check(leftovers.staged, _VALIDATE, Reads.LISTING),
    Check(leftovers.work, _VALIDATE, Reads.LISTING),
    Check(leftovers.siblings, _VALIDATE, Reads.LISTING),
    Check(leftovers.claims, _VALIDATE, Reads.METADATA),
    Check(leftovers.temporaries, _VALIDATE, Reads.LISTING),
    Check(metadata.root, _VALIDATE, Reads.LISTING),
    Check(metadata.groups, _VALIDATE, Reads.METADATA),
    Check(metadata.dimensions, _VALIDATE, Reads.LISTING),
    Check(metadata.variables, _VALIDATE, Reads.LISTING),
    Check(documents.arrays, _VALIDATE, Reads.LISTING),
    Check(documents.attribute_types, _VALIDATE, Reads.LISTING),
    Check(documents.array_dimensions, _VALIDATE, Reads.LISTING),
    Check(documents.dialect, _VALIDATE, Reads.LISTING),
    Check(documents.consolidated, ("doctor", "validate"), Reads.LISTING),
    Check(objects.listing, _VALIDATE, Reads.LISTING),
    Check(objects.foreign, _VALIDATE, Reads.LISTING),
    Check(objects.unlisted, _VALIDATE, Reads.LISTING),
    Check(objects.missing, _VALIDATE, Reads.LISTING),
    Check(objects.outside, _VALIDATE, Reads.LISTING),
    Check(objects.ends, _VALIDATE, Reads.METADATA),
    Check(objects.fragments, _VALIDATE, Reads.METADATA),
    Check(chunks.undecodable, _VALIDATE, Reads.DATA),
    Check(metadata.obstacles, _VALIDATE, Reads.METADATA),
    Check(metadata.releases, _VALIDATE, Reads.LISTING),
    Check(layout.references, _DOCTOR, Reads.METADATA),
    Check(layout.not_predicted, _DOCTOR, Reads.METADATA),
    Check(cmip7.is_netcdf4, _CHECK, Reads.METADATA),
    Check(cmip7.index_first, _CHECK, Reads.METADATA),
    Check(cmip7.one_chunk_of_time, _CHECK, Reads.METADATA),
    Check(cmip7.large_chunks, _CHECK, Reads.METADATA),
)


def findings(subject: Subject, tool: Tool, most: Reads) -> Iterator[Finding]:
    """Yield what the checks of a tool find that read no more than so much."""
    for check in CHECKS:
        if tool in check.tools and check.cost <= most:
            yield from check.run(subject)
