"""Trying again what fails for a while, with waits that double and vary."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nczarr_fsspec.errors import StoreError

T = TypeVar("T")

#: requests for one range at most, and the first of the doubling waits between them, in seconds
ATTEMPTS = 6
FIRST_WAIT = 0.25
#: a server that wants a longer wait than this, in seconds, is believed and not asked again
LONGEST_WAIT = 60.0


class TransientError(Exception):
    """Worth another try.

    Attributes
    ----------
    wait : float
        Seconds until then, at least.
    busy : bool
        Whether the server says that these are too many requests.
    counts : bool
        Whether it brings the last try nearer. The owner of many requests sets this to False if
        the server answered others meanwhile: it works, and this one comes to its turn.
    """

    def __init__(self, reason: str, wait: float = 0.0, *, busy: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.busy = busy
        self.counts = True


async def retried(attempt: Callable[[], Awaitable[T]], shown: str) -> T:
    """Await `attempt` until it does not raise `TransientError`.

    Parameters
    ----------
    attempt
        Called for every try.
    shown
        What it is about, for the message.

    Raises
    ------
    StoreError
        If `ATTEMPTS` tries failed, or the server wants to be left alone for long.
    """
    wait, tries, counted = FIRST_WAIT, 0, 0
    while True:
        try:
            return await attempt()
        except TransientError as error:
            reason, asked = str(error), error.wait
            tries += 1
            counted += error.counts
        if counted == ATTEMPTS or asked > LONGEST_WAIT:
            raise StoreError(shown, f"{reason} (tried {tries} times)")
        jitter = random.uniform(0.5, 1)  # noqa: S311 - no secret
        await asyncio.sleep(max(asked, wait * jitter))
        wait = min(2 * wait, FIRST_WAIT * 2**ATTEMPTS)  # some tries do not count
