"""The tables and pictures of bench/remote.py, and their place in the documentation."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import OURS, heading, insert
from harness import machine as _machine

PACKAGES = (
    "aiohttp",
    "async-hdf5",
    "fsspec",
    "h5coro",
    "h5netcdf",
    "h5py",
    "kerchunk",
    "obspec-utils",
    "obstore",
    "pyfive",
    "scipy",
    "virtualizarr",
)
MEASURED = "50 ms"
"""The network of the table and of the picture."""
INFORMATION = "(no package)"
"""Readers that nobody can install are measured, but are no peers."""
USUAL = "xarray + h5netcdf"
"""What most people use."""
COLOURS = {"ours": "#1b7837", "peer": "#fdae61", "other": "#a6bddb"}

Rows = dict[str, Any]


def machine() -> dict[str, Any]:
    """As bench/harness.py says it, with the peers."""
    where = _machine()
    where["versions"] |= {name: version(name) for name in PACKAGES}
    return where


def best_peer(row: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The fastest of the peers that gave the right values."""
    peers = {
        name: result
        for name, result in row["readers"].items()
        if name != OURS and INFORMATION not in name and not result["error"]
    }
    return min(peers.items(), key=lambda item: item[1]["seconds"]) if peers else None


def table(rows: Rows) -> str:
    """One network: each file with what is done with it, and what peers do with the same."""
    files = list(dict.fromkeys(name.split()[0] for name in rows))
    done = list(dict.fromkeys(name.split()[1] for name in rows))
    lines = [f"| file | {' | '.join(done)} |", "|---" * (len(done) + 1) + "|"]
    for file in files:
        found = (rows.get(f"{file} {what}") for what in done)
        cells = ["–" if row is None else _ours(row) for row in found]
        lines.append(f"| {file} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| read | {OURS} | requests, MB | {USUAL} | best peer | requests, MB | its time / ours |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        ours = row["readers"][OURS]
        if not ours["error"] and (peer := best_peer(row)):
            usual = row["readers"].get(USUAL, {"error": "not asked"})
            cells = [name, _time(ours), _traffic(ours), "–" if usual["error"] else _time(usual)]
            cells.append(f"{peer[0]}: {_time(peer[1])}")
            cells += [_traffic(peer[1]), f"{peer[1]['seconds'] / ours['seconds']:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ours(row: dict[str, Any]) -> str:
    """Our time, and how many times as long as the limit that is."""
    ours = row["readers"][OURS]
    times = ours["seconds"] / row["limit"]
    return "fails" if ours["error"] else f"{_time(ours)} ({times:.2f})"


def _time(result: dict[str, Any]) -> str:
    return f"{result['seconds']:.2f} s"


def _traffic(result: dict[str, Any]) -> str:
    return f"{result['requests']}, {result['bytes'] / 1e6:.1f}"


def save(document: dict[str, Any], folder: Path) -> None:
    """Write the numbers, the picture, and the tables between their marks in the page.

    Networks that were not measured this time keep what was measured before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "remote.json"
    document = (json.loads(file.read_text()) if file.exists() else {}) | document
    file.write_text(json.dumps(document, indent=1) + "\n")
    if MEASURED not in document:
        return
    bars(document[MEASURED]["rows"], folder / "remote.png")
    text = f"{heading('remote', document[MEASURED])}\n\n{table(document[MEASURED]['rows'])}\n\n"
    text += "![These reads as bars](remote.png)"
    insert(folder, "remote", text)


def bars(rows: Rows, path: Path) -> None:
    """Draw each read: ours and the best peer, with a mark at the limit."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(9, 0.35 * len(rows) + 1.2), layout="constrained")
    labels: set[str] = set()

    def bar(place: float, seconds: float, kind: str, label: str) -> None:
        shown = None if label in labels else label
        labels.add(label)
        axes.barh(place, seconds, 0.36, color=COLOURS[kind], label=shown)

    for i, row in enumerate(rows.values()):
        ours, peer = row["readers"]["nczarr"], best_peer(row)
        if not ours["error"]:
            bar(i - 0.19, ours["seconds"], "ours", "nczarr")
        if peer is not None:
            bar(i + 0.19, peer[1]["seconds"], "peer", "best peer")
        axes.plot([row["limit"]] * 2, [i - 0.42, i + 0.42], color="black", linewidth=1.5)
    axes.plot([], [], color="black", linewidth=1.5, label="limit")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40], [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("seconds (median, logarithmic)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def waterfall(logs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw every request from its arrival to its last byte, one row each, on one axis of time."""
    plt = _pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = plt.subplots(
        1, len(logs), figsize=(10, 4.2), sharex=True, layout="constrained", squeeze=False
    )
    for axes, (name, log), kind in zip(panels[0], logs.items(), ("ours", "peer"), strict=False):
        requests = sorted(log, key=lambda request: (request["t0"], request["t1"]))
        first = requests[0]["t0"]
        for i, request in enumerate(requests, 1):
            end = request["t1"] - first
            axes.barh(
                i, request["t1"] - request["t0"], 0.8, request["t0"] - first, color=COLOURS[kind]
            )
            axes.annotate(
                _pieces(request), (end, i), (3, 0), textcoords="offset points", va="center", size=7
            )
        moved = sum(request["sent"] for request in requests) / 1e6
        many = len({request["conn"] for request in requests})
        axes.set_title(
            f"{name}: {end:.2f} s, {moved:.1f} MB\n"
            f"{len(requests)} requests on {many} connection{'s' * (many > 1)}",
            fontsize=10,
        )
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(len(requests) + 0.6, 0.4)
        axes.set_xlabel("seconds")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("requests")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _pieces(request: dict[str, Any]) -> str:
    if request["m"] == "HEAD":
        return "HEAD"
    count = (request["range"] or "").count(",") + 1
    size = (
        f"{request['sent'] / 1e6:.1f} MB"
        if request["sent"] >= 1e5
        else f"{request['sent'] / 1e3:.0f} kB"
    )
    return size if count == 1 else f"{size} in {count} ranges"


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    return plt
