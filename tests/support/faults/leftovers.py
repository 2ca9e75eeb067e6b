"""Reads that zarr-python leaves under way when one of them fails."""

from __future__ import annotations

import asyncio

from zarr.core.sync import sync


def end_reads() -> None:
    """End the reads that are still under way on the event loop of zarr-python.

    zarr-python raises the first error of a batch of chunks, and lets the reads of the others go
    on.  They would ask a server again and again that a test has closed meanwhile, and a trace
    of the next test would record them.
    """

    async def end_all() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    sync(end_all())
