#!/usr/bin/env python3
"""Try bytes on a parser that lead to code which no others reached (atheris, by libFuzzer).

    pip install atheris
    python ci/fuzz_coverage.py hdf5 900 --corpus /tmp/corpus
    python ci/fuzz_coverage.py all 3600
    python ci/fuzz_coverage.py all --keep 400000 --corpus /tmp/corpus

The parsers are the rows of ``tests/support/corpora/parsers.py``. A row must give a value or an
error of ours, or one that its caller waits for, within 5 seconds of the processor and 2 GiB. What
does not is a finding: its input is kept in the corpus as ``finding-...``, once for each place that
raised, and the run goes on. `all` runs each of them for its share of the seconds. The corpus of a
parser is in a folder of its name; it begins with the inputs in ``tests/data/fuzz``.

With --keep nothing is tried: the smallest inputs of the corpus that reach all the lines of ours, in
all orders in which any input does, with all ends that any has, are put into ``tests/data/fuzz``;
in so many bytes, of which each parser has its share.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import atheris  # noqa: E402 - the path comes first

MEMORY = 2 << 30
SECONDS = 5.0
#: Seconds after which libFuzzer ends the process.
HANG = 60

with atheris.instrument_imports(include=["nczarr_fsspec", "nczarr_xarray"]):
    from tests.support.corpora import parsers


class Findings:
    """Runs inputs, and keeps those that break the promise.

    Parameters
    ----------
    name
        Of the parser.
    folder
        Where they are kept.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._known: set[str] = set()

    def run(self, data: bytes) -> None:
        """Run one input."""
        begin = time.process_time()
        try:
            parsers.check(self._name, data)
        except Exception as error:  # noqa: BLE001 - these are what we look for
            # (where the same line is reached on many ways, the first is enough)
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "nczarr_" in frame.filename] or frames
            where = f"{type(error).__name__} at {ours[-1].filename}:{ours[-1].lineno}"
            self._keep(where, data, "".join(traceback.format_exception(error, limit=-6)))
        seconds = time.process_time() - begin
        if seconds > SECONDS:
            self._keep("slow", data, f"took {seconds:.1f} s")

    def _keep(self, where: str, data: bytes, text: str) -> None:
        if where in self._known:
            return
        self._known.add(where)
        path = self._folder / f"finding-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"FINDING in {self._name}, {where}, {path}\n{text[-3000:]}", flush=True)


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Run one parser; this ends the process, as libFuzzer does."""
    parser = parsers.PARSERS[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    good = [*parser.seeds(), *parsers.kept(name)]
    findings = Findings(name, corpus)
    with atheris.instrument_imports(include=["nczarr_fsspec", "nczarr_xarray"]):
        for data in good:  # what is imported by need is instrumented, too
            findings.run(data)
            if len(data) <= parser.most:
                (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    arguments = [
        sys.argv[0], str(folder), f"-max_total_time={seconds}", f"-max_len={parser.most}",
        "-print_final_stats=1", f"-timeout={HANG}", f"-rss_limit_mb={MEMORY >> 20}",
        f"-artifact_prefix={corpus}/finding-{name}-", "-use_value_profile=1",
    ]  # fmt: skip
    atheris.Setup(arguments, findings.run)
    atheris.Fuzz()


def keep(name: str, corpus: Path, most: int) -> None:
    """Replace the kept inputs of a parser by the smallest ones that reach the same, by lines."""
    known: set[tuple[str, int, int]] = set()
    chosen: list[bytes] = []
    inputs = {*(path.read_bytes() for path in (corpus / name).iterdir()), *parsers.kept(name)}
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        if len(data) > most:
            break
        reached = steps(name, data)
        if not reached <= known:
            known |= reached
            chosen.append(data)
            most -= len(data)
    parsers.keep(name, chosen)
    total = sum(map(len, chosen))
    print(
        f"{name:12} {len(chosen):4} of {len(inputs):5} inputs, {total:6} bytes, {len(known)} steps"
    )


def steps(name: str, data: bytes) -> set[tuple[str, int, int]]:
    """Return the steps from line to line of ours that an input leads to, and how it ends."""
    found: set[tuple[str, int, int]] = set()

    def trace(frame: FrameType, _: str, __: object) -> Any:
        file = frame.f_code.co_filename
        if "nczarr_" not in file:
            return None
        last = 0

        def line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal last
            if event == "line":
                found.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        end = parsers.check(name, data)
    finally:
        sys.settrace(None)
    return found | {(type(end).__name__, 0, 0)}


def fuzz_all(seconds: int, corpus: Path) -> int:
    """Run every parser in a process of its own; print a table."""
    shares = sum(parser.share for parser in parsers.PARSERS.values())
    status = 0
    rows = []
    for name, parser in parsers.PARSERS.items():
        own = max(5, seconds * parser.share // shares)
        words = (sys.executable, __file__, name, str(own), "--corpus", str(corpus))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        found = text.count("FINDING in ") + (done.returncode != 0)
        status |= found > 0
        executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", text)
        edges = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
        rows.append(
            f"{name:12} {own:6} s {(executions or ['?'])[-1]:>9} runs  "
            f"{' -> '.join(one[0] for one in (edges[:1] + edges[-1:])):>14} edges "
            f"{found:3} findings"
        )
        print(rows[-1], flush=True)
        if found:
            lines = [line for line in text.splitlines() if not re.match(r"#\d+\s|INFO:", line)]
            print("\n".join(lines)[-20_000:], flush=True)
    return status


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parser", choices=[*parsers.PARSERS, "all"])
    parser.add_argument("seconds", type=int, nargs="?", default=60)
    parser.add_argument("--corpus", type=Path, help="a folder; without it, one that is forgotten")
    parser.add_argument("--keep", type=int, help="bytes of inputs to keep for the tests, in all")
    args = parser.parse_args()
    if args.keep:
        shares = sum(one.share for one in parsers.PARSERS.values())
        for name in parsers.PARSERS if args.parser == "all" else [args.parser]:
            keep(name, args.corpus, args.keep * parsers.PARSERS[name].share // shares)
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY, 2 * MEMORY))
    corpus = args.corpus or Path(tempfile.mkdtemp(prefix="fuzz-"))
    if args.parser == "all":
        return fuzz_all(args.seconds, corpus)
    fuzz(args.parser, args.seconds, corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
