"""Clusters of dask.distributed on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: A machine that is busy, or a process that is stopped, is not a fault that tests mean. For dask,
#: a process that is not back within 15 s of its death is lost for ever, and an export that needs
#: it waits for ever. The limit of a test (pytest's `timeout`) is below these.
PATIENCE = {
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.comm.timeouts.connect": "1 hour",
    "distributed.comm.timeouts.tcp": "1 hour",
    "distributed.scheduler.worker-ttl": "1 hour",
}


@contextmanager
def two_processes(threads: int = 1) -> Iterator[Any]:
    """Start a cluster of two processes; yield its client, which is not dask's default."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set(PATIENCE),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=threads, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
