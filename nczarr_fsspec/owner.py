"""Who writes: which process, on which machine, and whether it still runs."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that writes to a dataset.

    Parameters
    ----------
    host, pid
        Machine and process.
    started
        When the process started, in a unit of the machine's own; it tells two
        processes that got the same number. Empty where the system does not say.
    since
        When it began to write, in UTC.
    """

    host: str
    pid: int
    started: str
    since: str

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()), since)

    @classmethod
    def parse(cls, document: Any) -> Owner:
        """Take it from JSON; what is missing or wrong makes it nobody we know."""
        found = document if isinstance(document, dict) else {}
        text = {name: str(found.get(name, "")) for name in ("host", "started", "since")}
        pid = found.get("pid")
        return cls(pid=pid if isinstance(pid, int) else 0, **text)

    @property
    def document(self) -> dict[str, Any]:
        """What `parse` takes."""
        return asdict(self)

    def is_dead(self) -> bool:
        """Whether the process is known to have ended: only its own machine can tell."""
        if self.host != socket.gethostname() or self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return bool(self.started) and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, writing since {self.since}"


def _started(pid: int) -> str:
    """Start of a process in clock ticks since boot, where there is /proc (field 22, proc(5))."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = status.rpartition(")")[2].split()
    # a zombie has ended, though its parent has not asked how
    return "" if not fields else ("ended" if fields[0] == "Z" else fields[19])


def parse_json(data: bytes) -> Any:
    """A document of ours; None if it is damaged."""
    try:
        return json.loads(data)
    except ValueError:
        return None
