"""Writing with dask: its arrays, a task for each block; parts of copies, by workers."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrError, StoreError
from nczarr_xarray.export.chunk_writer import Gated, check_block
from nczarr_xarray.export.progress import Progress

if TYPE_CHECKING:
    import xarray as xr

    from nczarr_xarray.export.steps import Step


_logger = logging.getLogger(__name__)

#: Seconds to wait for the end of tasks that were cancelled. One that has begun cannot be stopped.
PATIENCE = 60.0

#: The path of an array, and the number of chunks that each of its blocks put (0 if they are not
#: counted): an array, or dask's array that writes the blocks when it is computed.
Written = tuple[str, Any]


def write_blocks(path: str, data: Any, writer: Gated, *, counted: bool) -> Any:
    """Return dask's array whose blocks write those of `data`, and give the number of chunks put.

    A block of the result is computed by writing one block of the data.

    Parameters
    ----------
    path
        Path of the variable.
    counted
        Whether the chunks are counted; if not, the number is 0.
    """
    write = partial(
        _write_block,
        writer=writer,
        path=path,
        lengths=data.chunks,
        starts=[np.cumsum([0, *lengths[:-1]]).tolist() for lengths in data.chunks],
        counted=counted,
    )
    return data.map_blocks(
        write,
        chunks=tuple((1,) * number for number in data.numblocks),
        dtype=np.intp,
        meta=np.empty((0,) * data.ndim, np.intp),
        name=f"nczarr-export-{uuid.uuid4().hex}",
    )


def refuse_other_chunks(url: str, dataset: xr.Dataset) -> None:
    """Raise `ExportError` for arrays that cannot be written.

    dask does not compute some, such as those of cubed, or does not know how long their blocks are.
    numpy makes no array of others, such as those of sparse.
    """
    from nczarr_xarray.backend.compat import stored_array  # copies do without xarray

    for name, variable in dataset.variables.items():
        if stored_array(variable) is None:
            held = getattr(variable.data, "_meta", variable.data)  # dask's are like its blocks
            try:
                np.asarray(held[(slice(0),) * held.ndim])
            except (RuntimeError, TypeError) as error:
                kind = f"{type(held).__module__.partition('.')[0]}.{type(held).__name__}"
                reason = f"{name} is of type {kind}, of which numpy makes no array ({error})"
                advice = "convert it (as_numpy; .map_blocks, if dask has it in its blocks)"
                raise ExportError(url, f"{reason}: {advice}") from error
        if variable.chunks is not None and np.isnan(variable.shape).any():
            raise ExportError(
                url,
                f"{name} has blocks whose lengths dask does not know: let it find them out "
                "(compute_chunk_sizes)",
            )
        if variable.chunks is not None and not hasattr(variable.data, "__dask_graph__"):
            kind = type(variable.data).__module__.partition(".")[0]
            raise ExportError(
                url,
                f"{name} is a lazy array of {kind}, and only those of dask are written: let its "
                "workers write regions of a template (to_nczarr with compute=False, then region=), "
                "or load it",
            )


def compute(writes: list[Written], sizes: Iterable[int], progress: Progress) -> list[Written]:
    """Compute arrays of `write_blocks`; return the numbers of chunks that were put.

    Parameters
    ----------
    sizes
        Bytes of the data of each.
    """
    each = {
        write.name: nbytes // max(1, write.npartitions)
        for (_, write), nbytes in zip(writes, sizes, strict=True)
    }
    progress.expect(sum(each[write.name] * write.npartitions for _, write in writes))

    def done(key: Any) -> None:
        progress.advance(each[key[0]])

    client = distributed_client()
    if client is None:
        return _compute_here(writes, done)
    return _compute_distributed(client, writes, done)


def optimized(writes: list[Written]) -> list[Written]:
    """Return the arrays with one graph, so that what several of them need is computed once.

    `dask.optimize` (2026.8) does that for each array by itself, `delayed` not at all.
    """
    if not writes:
        return []
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph

    arrays = [write for _, write in writes]
    graph: Any = HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
    keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
    graph = arrays[0].__dask_optimize__(graph, keys)
    rebuilds = (array.__dask_postpersist__() for array in arrays)
    done = [rebuild(graph, *arguments) for rebuild, arguments in rebuilds]
    return [(path, array) for (path, _), array in zip(writes, done, strict=True)]


def not_shared(url: str, said: str) -> StoreError:
    """Return the error for what dask's workers have written, and is not there."""
    return StoreError(
        url,
        f"{said}: dask's workers do not write to the same place; use a scheduler of this process "
        "(threads), or a place that all of them share",
    )


def _write_block(
    values: Any,
    writer: Gated,
    path: str,
    lengths: tuple[tuple[int, ...], ...],
    starts: list[list[int]],
    counted: bool,
    block_id: tuple[int, ...] = (),
) -> np.ndarray:
    """Write one of dask's blocks; return the number of chunks put, if it is asked for."""
    block = np.asarray(values)
    check_block(path, block, tuple(axis[i] for axis, i in zip(lengths, block_id, strict=True)))
    first = tuple(axis[i] for axis, i in zip(starts, block_id, strict=True))
    number = writer.write(block, first, threads=1)
    return np.full((1,) * len(first), number if counted else 0, np.intp)


def _compute_here(writes: list[Written], done: Callable[[Any], None]) -> list[Written]:
    """Compute arrays with a scheduler of this machine; `done` gets the keys of the blocks."""
    from dask.base import compute
    from dask.callbacks import Callback
    from dask.core import flatten

    paths, arrays = zip(*writes, strict=True)
    waiting = {key for array in arrays for key in flatten(array.__dask_keys__())}

    def finished(key: Any, *_: Any) -> None:
        if key in waiting:
            waiting.remove(key)
            done(key)

    with Callback(posttask=finished):
        numbers = compute(*arrays)
    for key in waiting:  # if the scheduler knows of no callbacks
        done(key)
    return [*zip(paths, numbers, strict=True)]


def _compute_distributed(
    client: Any, writes: list[Written], done: Callable[[Any], None]
) -> list[Written]:
    """Compute arrays on a cluster; no task of them runs after this function has ended."""
    from distributed import as_completed, futures_of

    paths = {array.name: path for path, array in writes}
    written: list[Written] = []
    with outside_of_tasks():
        futures = futures_of(client.persist([array for _, array in writes]))
        try:
            for future in as_completed(futures):
                written.append((paths[future.key[0]], future.result()))
                done(future.key)
        except BaseException:
            forget(client, futures)
            raise
    return written


def forget(client: Any, futures: list[Any]) -> None:
    """Cancel tasks, and wait until none of them runs any more: it would write during cleaning.

    A worker may never answer, as one that died of the same Ctrl-C: the wait has a limit.
    """
    client.cancel(futures)
    keys = {future.key for future in futures}

    async def wait() -> None:
        await asyncio.wait_for(client.run(_forgotten, keys, on_error="ignore"), PATIENCE)

    try:
        client.sync(wait)
    except TimeoutError:
        still = f"tasks that were cancelled have not ended within {PATIENCE:g} s"
        _logger.warning("%s: what they write from now on is not removed", still)


async def _forgotten(keys: set[Any], dask_worker: Any) -> None:
    """Wait until a worker has ended the tasks that were cancelled."""
    while not keys.isdisjoint(dask_worker.state.tasks):  # noqa: ASYNC110 - nothing tells when
        await asyncio.sleep(0.01)


@contextmanager
def outside_of_tasks() -> Iterator[None]:
    """Free the place of this task on its worker, if it runs on one, while the task waits."""
    from distributed import get_worker, rejoin, secede

    try:
        get_worker()
    except ValueError:
        yield
        return
    secede()
    try:
        yield
    finally:
        rejoin()


def distributed_client() -> Any:
    """Return the client of dask.distributed if that is the scheduler in use, else None."""
    if "distributed" not in sys.modules:
        return None
    from dask.base import get_scheduler
    from distributed import Client

    client = getattr(get_scheduler(), "__self__", None)
    return client if isinstance(client, Client) else None


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
