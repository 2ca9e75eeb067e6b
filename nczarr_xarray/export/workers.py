"""Copying with processes of dask.distributed: parts of variables are tasks of theirs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_xarray.export.parallel import forget, outside_of_tasks
from nczarr_xarray.export.steps import Step

#: Seconds to wait for a scheduler.
PATIENCE = 30
#: Tasks that a thread of a worker has before it, so that it never waits for the next one.
_WAITING = 3
#: Of a cluster of our own. A worker that died is started again; if that takes longer than this
#: (15 s by default, on a machine that is busy), dask does without it for ever. Without any worker a
#: copy would wait for ever, too.
_RESTART = {"distributed.deploy.lost-worker-timeout": "1 day"}


@contextmanager
def connected(workers: int | None, scheduler: str | None) -> Iterator[None]:
    """Make a cluster the one that dask uses in this block; do nothing if none is asked for.

    Parameters
    ----------
    workers
        Number of processes to start on this machine.
    scheduler
        Address of a scheduler that runs.

    Raises
    ------
    ImportError
        If dask.distributed is not installed.
    StoreError
        If the scheduler does not answer.
    """
    if workers is None and scheduler is None:
        yield
        return
    try:
        import dask.config
        from distributed import Client, LocalCluster
    except ImportError:
        needs = "--workers and --scheduler need dask.distributed"
        raise ImportError(f"{needs}: pip install 'nczarr-xarray[dask]'") from None
    if scheduler is None:
        with (
            dask.config.set(_RESTART),
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,  # errors come back, and are raised here
            ) as cluster,
            Client(cluster),
        ):
            yield
        return
    try:
        client = Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        reason = f"no scheduler of dask.distributed answers there: {error}"
        raise StoreError(scheduler, reason) from error
    with client:
        if not client.nthreads():
            raise StoreError(scheduler, "its cluster has no workers: start some (dask worker)")
        yield


def run_parts(
    client: Any, steps: Sequence[Step], parts: Iterator[tuple[int, int]]
) -> Generator[tuple[int, int, int]]:
    """Do parts of steps on the workers of a cluster, in any order.

    No task of them runs any more when this has ended.

    Parameters
    ----------
    client
        Of dask.distributed.
    parts
        Pairs of the number of a step and of one of its parts.

    Yields
    ------
    tuple of int
        Such a pair, and the number of objects that were put, when it is done.

    Raises
    ------
    NCZarrError
        The first error, about what it concerns.
    """
    from distributed import as_completed

    with outside_of_tasks():
        threads = sum(client.nthreads().values())
        # tasks, not scattered data, which are lost for good with the worker that has them
        sent = [client.submit(_itself, step, pure=False) for step in steps]
        waiting: dict[str, tuple[int, int]] = {}

        def submit(pair: tuple[int, int]) -> Any:
            number, part = pair
            key = f"nczarr-copy-{steps[number].writer.array.path}-{part}-{uuid.uuid4().hex}"
            waiting[key] = pair
            return client.submit(run_part, sent[number], part, key=key, pure=False)

        futures = [submit(pair) for pair in islice(parts, max(1, threads) * (1 + _WAITING))]
        done = as_completed(futures)
        try:
            for future in done:
                pair = waiting.pop(future.key)
                yield (*pair, result_of(future, steps[pair[0]], pair[1]))
                for more in islice(parts, 1):
                    done.add(submit(more))
        except BaseException:
            forget(client, [*done.futures])
            raise


def _itself(step: Step) -> Step:
    return step


def run_part(step: Step, part: int) -> int:
    """Do a part on a worker; return the number of objects that were put."""
    return step.run(part, lambda _: None, threads=1)  # others have the other processors


def result_of(future: Any, step: Step, part: int) -> int:
    """Return how many chunks a worker has put; raise its error as one of the variable."""
    try:
        put: int = future.result()
    except NCZarrError:
        raise
    except Exception as error:  # of dask, or of the worker's packages
        what = f"{step.item.variable.path}, part {part + 1} of {step.parts}"
        reason = str(error) or type(error).__name__
        raise StoreError(what, f"cannot be copied by a worker: {reason}") from error
    return put
