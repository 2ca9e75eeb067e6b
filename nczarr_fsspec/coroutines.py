"""Coroutines that run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def gather_or_cancel(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Do as `asyncio.gather` does, and leave nothing running when one of them fails."""
    if len(coroutines) == 1:  # without a task of its own
        return [await coroutines[0]]
    futures = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*futures))
    except BaseException:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        raise
