"""The owner of a change: its process and machine, and whether the process still runs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nczarr_fsspec.errors import StoreError

#: The changes of this process that are under way. Its other locks are left over from changes that
#: failed and could not remove them.
AT_WORK: set[str] = set()

_IDENTITY = re.compile(
    r"(?P<host>.*)-(?P<system>[0-9a-f]*)-(?P<pid>[0-9]{1,18})-(?P<started>[a-z0-9]*)", re.DOTALL
)
#: What is answered although /proc may say it later.
_FOR_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: no key is like this
_TEMPORARY = ".nczarr-tmp-"
_IS_TEMPORARY = re.compile(
    re.escape(_TEMPORARY) + "(?P<identity>.*)-[0-9a-f]{16}", re.DOTALL
).fullmatch


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that writes to a dataset.

    Parameters
    ----------
    host, system, pid
        Machine, the kernel that runs there with the namespace of process numbers
        (containers may share a name, and a machine may have been started anew;
        empty where that cannot be asked), and process.
    started
        When the process started, in a unit of the machine's own; it tells two
        processes that got the same number. Empty where the system does not say.
    since
        When it began to write, in UTC.
    """

    host: str
    system: str
    pid: int
    started: str
    since: str

    @classmethod
    def here(cls) -> Owner:
        """Return the owner that stands for this process."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        pid = os.getpid()
        return cls(*machine(), pid, _started(pid), since)

    @classmethod
    def parse(cls, document: Any) -> Owner:
        """Return an owner from parsed JSON; missing or wrong members give an unknown owner."""
        found = document if isinstance(document, dict) else {}
        text = {name: str(found.get(name, "")) for name in ("host", "system", "started", "since")}
        pid = found.get("pid")
        return cls(pid=pid if isinstance(pid, int) else 0, **text)

    @classmethod
    def of_identity(cls, text: str) -> Owner | None:
        """Return the owner with this `identity`; None if it is none."""
        match = _IDENTITY.fullmatch(text)
        if match is None:
            return None
        host, system, pid, started = match.groups()
        return cls(host, system, int(pid), started, "")

    @property
    def identity(self) -> str:
        """A part of the names of files that tells which process writes them."""
        return f"{self.host}-{self.system}-{self.pid}-{self.started}"

    @property
    def document(self) -> dict[str, Any]:
        """What `parse` takes."""
        return asdict(self)

    def is_dead(self) -> bool:
        """Tell whether the process has certainly ended; only its own machine can find that out."""
        if (self.host, self.system) != machine() or self.pid <= 0:
            return False
        if os.name == "nt":  # there, os.kill ends the process
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # no process has such a number
            return False
        return bool(self.started) and _started(self.pid) != self.started

    def has_left(self, work: str) -> bool:
        """Tell whether the owner has certainly ended this work, which is named as in `AT_WORK`."""
        here = (*machine(), _started(self.pid))
        ours = self.pid == os.getpid() and (self.host, self.system, self.started) == here
        return work not in AT_WORK if ours else self.is_dead()

    def __str__(self) -> str:
        since = f", writing since {self.since}" if self.since else ""
        return f"process {self.pid} on {self.host}{since}"


def temporary_name() -> str:
    """Return a new name for a file that is not complete; it tells that this process writes it."""
    return f"{_TEMPORARY}{_own_identity(os.getpid())}-{os.urandom(8).hex()}"


def writer_of(key: str) -> Owner | None:
    """Return the process that writes a file that is not complete; None if its name is a key."""
    match = _IS_TEMPORARY(key.rpartition("/")[2])
    return None if match is None else Owner.of_identity(match["identity"])


@cache
def _own_identity(pid: int) -> str:  # noqa: ARG001 - a fork is another process
    return Owner.here().identity


def machine() -> tuple[str, str]:
    """Return host and system, which identify this machine since it was started."""
    return socket.gethostname(), this_system()


@cache
def this_system() -> str:
    """Return 8 characters that identify the kernel and its namespace; "" without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode()
        names = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        return _unknown(error)
    return hashlib.sha256(f"{boot}{names}".encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """Return the start of a process in clock ticks since boot, from /proc (see proc(5))."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError as error:
        return _unknown(error)
    fields = status.rpartition(")")[2].split()
    # a zombie has ended, although its parent has not collected its status
    return "" if not fields else ("ended" if fields[0] == "Z" else fields[19])


def _unknown(error: OSError) -> str:
    """Return "", which stands for what the system does not say.

    Raises
    ------
    StoreError
        If it would say it at another time, as when too many files are open: a writer at work would
        be taken for one that has ended, and the work of this one could not be told to be its own.
    """
    if error.errno in _FOR_NOW:
        raise StoreError(error.filename, f"cannot be read: {error.strerror}") from error
    return ""


def parse_json(data: bytes) -> Any:
    """Return a parsed document of this package; None if it is damaged."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
