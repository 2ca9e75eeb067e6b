"""Copies in bounded memory: maps become points, and compressed chunks are moved as they are.

Maps become points by ``nczarr copy --memory``, rechunker, cubed, ``nccopy -c`` and ``ncks``, which
are all told the same limit; each program is a process of its own, of which the seconds and the most
memory are measured, its start included, with bytecode that is there, as after `pip install`. The
first turn is checked and not counted, unless it is `LONG`: peers have no other then. rechunker
wants zarr 2, which nothing else here does: it gets an environment of its own, made for its row.

Last, a file of 2 GB of shuffled zlib is copied: the chunks of ours are moved, ``nccopy`` decodes
them, ``cp`` moves bytes. How fast 2 GB of page cache are there varies, on a machine whose memory is
another one's: so the programs take turns, each has five or more, and medians are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
from data import DTYPE
from data import field as smooth
from harness import LONG, OURS, Goal, Options, heading, insert, machine

from nczarr_xarray import open_hierarchy
from nczarr_xarray.chunks.threads import processors

#: Bytes that every program may take.
LIMIT = 400_000_000
#: Bytes that Python with zarr and its packages takes, of which cubed is to be told.
PYTHON = 150_000_000
#: Of a map; and the lengths of the chunks in which points are.
MAP, POINTS = (500, 1000), (25, 50)
STEPS = 500
#: Bytes of the file whose chunks are moved.
MOVED = 2_000_000_000
#: Steps that differ in more than what is added to them.
PERIOD = 8
#: Seconds after which a program is ended.
PATIENCE = 1800
#: A process as small as this one: the peak of a program begins with that of what has started it.
LAUNCHER = """
import os, subprocess, sys, time
start = time.perf_counter()
program = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(program.pid, 0)
with open(sys.argv[1], "w") as out:
    print(time.perf_counter() - start, usage.ru_maxrss * 1024, file=out)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""
MAIN = "import sys; from nczarr_xarray.cli.main import main; sys.exit(main())"
NCZARR = [sys.executable, "-c", MAIN]
#: Its newest release; it wants zarr 2.
RECHUNKER_VERSION = "rechunker==0.5.4"
#: Programs that import nothing but what they need; arguments: source, target, steps.
RECHUNKER = f"""
import sys, zarr
from rechunker import rechunk
source, target, steps = sys.argv[1:]
zarr.open_group(target, mode="w")
array = zarr.open(source, mode="r")
rechunk(
    array,
    target_options={{"compressor": array.compressor, "filters": array.filters}},
    target_chunks=(int(steps), *{POINTS}),
    max_mem={(LIMIT - PYTHON) // processors()},
    target_store=f"{{target}}/v",
    temp_store=f"{{target}}.between",
).execute()
"""
CUBED = f"""
import sys, zarr, cubed
source, target, steps = sys.argv[1:]
zarr.open_group(target, mode="w", zarr_format=3)
spec = cubed.Spec(
    work_dir=f"{{target}}.between",
    allowed_mem={(LIMIT - PYTHON) // processors()},
    executor_name="threads",
    executor_options={{"max_workers": {processors()}}},
)
values = cubed.from_zarr(source, spec=spec)
cubed.to_zarr(values.rechunk((int(steps), *{POINTS})), f"{{target}}/v")
"""


@dataclass
class Turns:
    """What one program took: seconds and bytes of each turn, or why it has none."""

    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return "fails"
        return f"{statistics.median(self.seconds):.1f} s, {max(self.peaks) / 1e6:.0f} MB"


@dataclass
class Job:
    """One row: the commands of the programs, by name, and how the result is checked.

    Attributes
    ----------
    least_turns
        How many turns each program has at least, also a peer that is `LONG`; 0: as always.
    errors
        Of programs that cannot be asked: why.
    """

    programs: dict[str, list[str]]
    right: Callable[[Path], bool]
    goals: tuple[Goal, ...] = ()
    limit: int | None = LIMIT
    least_turns: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    found: dict[str, Turns] = field(default_factory=dict)

    def ratio(self, program: str) -> float | None:
        """How many times as long as ours a program takes."""
        ours, other = self.found[OURS].seconds, self.found[program].seconds
        return statistics.median(other) / statistics.median(ours) if ours and other else None

    def missed(self) -> list[str]:
        """The goals that do not hold."""
        found = [(goal, self.ratio(goal.program)) for goal in self.goals]
        missed = [str(goal) for goal, ratio in found if ratio is None or ratio < goal.at_least]
        over = [peak for peak in self.found[OURS].peaks if self.limit and peak > self.limit]
        return [*missed, *(["memory"] if over else [])]


class Field:
    """The values of a variable "v", which are made anew where they are needed."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._base = smooth((PERIOD, *MAP))

    def rows(self, steps: slice, rows: slice = slice(None)) -> np.ndarray[Any, Any]:
        numbers = np.arange(steps.start, min(steps.stop, self.steps))
        values = self._base[numbers % PERIOD, rows]
        return np.round(values + (numbers * 0.01).astype(DTYPE)[:, None, None], 3)

    def write(self, path: Path) -> Path:
        """Write a netCDF-4 file, a map in each chunk."""
        with netCDF4.Dataset(path, "w") as file:
            for name, length in zip("tyx", (self.steps, *MAP), strict=True):
                file.createDimension(name, length)
            layout: dict[str, Any] = {"chunksizes": (1, *MAP), "zlib": True, "complevel": 1}
            v = file.createVariable("v", DTYPE, ("t", "y", "x"), fill_value=False, **layout)
            for step in range(0, self.steps, PERIOD):
                v[step : step + PERIOD] = self.rows(slice(step, step + PERIOD))
        return path

    def are_in(self, path: Path, block: tuple[int, int]) -> bool:
        """Tell whether all values are there; they are read by blocks of steps and rows."""
        with open_hierarchy(path) as found:
            variables = found.hierarchy.root.variables
            if "v" not in variables:
                return False
            v = variables["v"]
            for step in range(0, self.steps, block[0]):
                for row in range(0, MAP[0], block[1]):
                    part = slice(step, step + block[0]), slice(row, row + block[1])
                    if not np.array_equal(found.read(v, (*part, slice(None))), self.rows(*part)):
                        return False
        return True


def lengths(steps: int, form: str = "{}={}") -> list[str]:
    named = zip("tyx", (steps, *POINTS), strict=True)
    return [form.format(name, length) for name, length in named]


class Sources:
    """What is copied, each made when a row wants it, and the rows."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder = folder
        self.steps = max(PERIOD, round(STEPS * scale))
        self.moved = MOVED * scale
        size = f"{self.steps * MAP[0] * MAP[1] * DTYPE.itemsize / 1e9:.2g} GB"
        self.jobs = {
            f"{size} of HDF5, maps to points": self.from_file,
            f"{size} of Zarr 2, maps to points": self.from_tree,
            f"{self.moved / 1e9:.2g} GB of shuffled zlib, as it is": self.as_it_is,
        }
        self.chunks = ["--chunks", ",".join(lengths(self.steps)), "--memory", str(LIMIT)]

    @cached_property
    def values(self) -> Field:
        return Field(self.steps)

    @cached_property
    def file(self) -> Path:
        return self.values.write(self.folder / "v.nc")

    def in_points(self, path: Path) -> bool:
        return self.values.are_in(path, (self.steps, POINTS[0]))

    def from_file(self) -> Job:
        half, file = str(LIMIT // 2), str(self.file)
        copier = ["nccopy", "-m", half, "-h", half, "-e", "10007", "-d", "1", "-s"]
        named = [word for one in lengths(self.steps, "{},{}") for word in ("--cnk_dmn", one)]
        operator = ["ncks", "-O", "-4", "-L", "1", "--no_tmp_fl", "--cnk_csh", half, *named]
        points = ",".join(lengths(self.steps, "{}/{}"))
        programs = {
            OURS: [*NCZARR, "copy", file, "OUT", *self.chunks],
            "nccopy -c": [*copier, "-c", points, file, "OUT.nc"],
            "ncks": [*operator, file, "OUT.nc"],
        }
        return Job(programs, self.in_points)

    def from_tree(self) -> Job:
        tree = self.folder / "v.zarr"
        subprocess.run(
            [*NCZARR, "copy", self.file, tree, "--format", "Zarr2"], check=True, env=environment()
        )
        told = [str(tree / "v"), "OUT", str(self.steps)]
        programs = {
            OURS: [*NCZARR, "copy", str(tree), "OUT", "--format", "Zarr2", *self.chunks],
            "rechunker": ["", "-c", RECHUNKER, *told],
            "cubed": [sys.executable, "-c", CUBED, *told],
        }
        job = Job(programs, self.in_points)
        try:
            programs["rechunker"][0] = rechunker_python(self.folder)
        except subprocess.CalledProcessError as error:
            job.errors["rechunker"] = f"{RECHUNKER_VERSION} cannot be installed: {last(error)}"
        return job

    def as_it_is(self) -> Job:
        sample = Field(PERIOD).write(self.folder / "sample.nc").stat().st_size
        more = Field(max(PERIOD, round(self.moved / sample * PERIOD)))
        large = str(more.write(self.folder / "large.nc"))
        programs = {
            OURS: [*NCZARR, "copy", large, "OUT"],
            "nccopy": ["nccopy", large, "OUT.nc"],
            "cp": ["cp", large, "OUT.nc"],
        }
        goals = (Goal("nccopy", 5), Goal("cp", 0.7))
        return Job(programs, lambda path: more.are_in(path, (PERIOD, MAP[0])), goals, None, 5)


def rechunker_python(folder: Path) -> str:
    """Make an environment for rechunker, and return its Python.

    Raises
    ------
    subprocess.CalledProcessError
        If it cannot be installed there.
    """
    place = folder / "rechunker"
    python = str(place / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [python, "-m", "pip", "install", "--quiet", RECHUNKER_VERSION],
    ):
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    return python


def environment() -> dict[str, str]:
    """Return that of the programs: each start would compile all of this package otherwise."""
    found = dict(os.environ)
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run(options: Options) -> dict[str, Job]:
    found: dict[str, Job] = {}
    with tempfile.TemporaryDirectory() as name:
        for title, made in Sources(Path(name), options.scale).jobs.items():
            if options.wants(title):
                job = found[title] = made()
                take_turns(job, options.repeat, Path(name))
                shown = ", ".join(f"{name} {turns}" for name, turns in job.found.items())
                print(f"{title}: {shown}", file=sys.stderr, flush=True)
    return found


def take_turns(job: Job, repeat: int, folder: Path) -> None:
    """Have every program do the work in turn, A B C A B C ..., after one turn that is checked."""
    running = []
    for program in job.programs:
        turns = job.found[program] = Turns(error=job.errors.get(program, ""))
        if not turns.error:
            measure(job, program, folder, check=True)
        if turns.error:
            continue
        if turns.seconds[0] < LONG or program == OURS or job.least_turns:
            turns.seconds.clear()
            turns.peaks.clear()
            running.append(program)
    for _ in range(max(repeat, job.least_turns)):
        for program in running:
            if not job.found[program].error:
                measure(job, program, folder, check=False)


def measure(job: Job, program: str, folder: Path, *, check: bool) -> None:
    """Have a program do its work once, and check what it wrote."""
    turns, told = job.found[program], folder / "told"
    words = job.programs[program]
    command = [str(folder / word) if word in ("OUT", "OUT.nc") else word for word in words]
    if shutil.which(command[0]) is None:
        turns.error = f"{command[0]} is not installed"
        return
    os.sync()  # what was written before is no work of this program
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(told), *command],
            check=True,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            env=environment(),
        )
        seconds, peak = told.read_text().split()
        out = folder / ("OUT.nc" if "OUT.nc" in words else "OUT")
        if check and not job.right(out):
            turns.error = "wrong values"
        turns.seconds.append(float(seconds))
        turns.peaks.append(int(peak))
    except subprocess.CalledProcessError as error:
        turns.error = last(error)
    except subprocess.TimeoutExpired:
        turns.error = f"takes more than {PATIENCE} s"
    finally:
        for left in folder.glob("OUT*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def last(error: subprocess.CalledProcessError) -> str:
    """Return the last line that a program printed before it failed."""
    return str(error.stderr).strip().rpartition("\n")[2][:200]


def table(found: dict[str, Job]) -> str:
    """Seconds, and the most memory, of each program."""
    lines = ["| work | program | time | most memory | times ours |"]
    lines.append("|---" * 5 + "|")
    for title, job in found.items():
        first = f"{title}, at most {job.limit / 1e6:.0f} MB" if job.limit else title
        for name, turns in job.found.items():
            if turns.error:
                cells = [first, name, turns.error.replace("|", "/"), "–", "–"]
            else:
                ratio = job.ratio(name)
                cells = [
                    first,
                    name,
                    f"{statistics.median(turns.seconds):.2f} s",
                    f"{max(turns.peaks) / 1e6:.0f} MB",
                    "–" if ratio is None or name == OURS else f"{ratio:.2f}",
                ]
            lines.append(f"| {' | '.join(cells)} |")
            first = ""
    return "\n".join(lines)


def save(found: dict[str, Job], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the table on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": machine(), "command": command, "scale": options.scale}
    results = {
        title: {
            "programs": {name: asdict(turns) for name, turns in job.found.items()},
            "missed": job.missed(),
        }
        for title, job in found.items()
    }
    text = json.dumps({**document, "results": results}, indent=1)
    (folder / "rechunk.json").write_text(text + "\n")
    insert(folder, "rechunk", f"{heading('rechunk', document)}\n\n{table(found)}")
