"""The tables and pictures of bench/remote.py, and their place in the documentation."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import insert
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
TRAFFIC = "requests, MB, depth, connections"
INFORMATION = "(no package)"
"""Readers that nobody can install are measured, but are no peers."""
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
        if name != "nczarr" and INFORMATION not in name and not result["error"]
    }
    return min(peers.items(), key=lambda item: item[1]["seconds"]) if peers else None


def table(rows: Rows) -> str:
    """One network: ours, the limit, and the best peer."""
    head = f"read | nczarr (min–max) | {TRAFFIC} | limit | nczarr / limit | best peer"
    head += f" | its time; {TRAFFIC} | best peer / nczarr"
    lines = [f"| {head} |", "|---|---|---|---|---|---|---|---|"]
    for name, row in rows.items():
        ours, peer, limit = row["readers"]["nczarr"], best_peer(row), row["limit"]
        fine = not ours["error"]
        cells = [name, _time(ours, spread=True) if fine else ours["error"], _traffic(ours)]
        # Without latency the limit of a small read is next to nothing, and says nothing.
        comparable = fine and limit >= 0.05
        cells += [f"{limit:.2f} s", f"{ours['seconds'] / limit:.2f}" if comparable else "–"]
        if peer is None:
            cells += ["none" if len(row["readers"]) > 1 else "not asked", "–", "–"]
        else:
            ratio = f"{peer[1]['seconds'] / ours['seconds']:.1f}" if fine else "–"
            cells += [peer[0], f"{_time(peer[1])}; {_traffic(peer[1])}", ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def others(rows: Rows) -> str:
    """One network: the medians of all readers."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row["readers"]))
    lines = [f"| read | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for read, row in rows.items():
        cells = []
        for name in names:
            result = row["readers"].get(name)
            if result is None:
                cells.append("–")
            elif result["error"].startswith("stopped"):
                cells.append(f"> {result['seconds']:.0f} s")
            else:
                cells.append("fails" if result["error"] else _time(result))
        lines.append(f"| {read} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _time(result: dict[str, Any], *, spread: bool = False) -> str:
    text = f"{result['seconds']:.2f} s"
    return f"{text} ({result['min']:.2f}–{result['max']:.2f})" if spread else text


def _traffic(result: dict[str, Any]) -> str:
    megabytes = result["bytes"] / 1e6
    return f"{result['requests']}, {megabytes:.1f}, {result['depth']}, {result['connections']}"


def save(document: dict[str, Any], folder: Path) -> None:
    """Write the numbers, the picture, and the tables between their marks in the page.

    Networks that were not measured this time keep what was measured before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "remote.json"
    document = (json.loads(file.read_text()) if file.exists() else {}) | document
    file.write_text(json.dumps(document, indent=1) + "\n")
    text = ""
    for name, run in document.items():
        where, rows = run["machine"], run["rows"]
        versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items())
        text += f"## Network: {name}\n\n"
        text += f"{where['cores']} cores, {where['cpu']}, Python {where['python']}; {versions}. "
        text += f"`{run['command']}`\n\n"
        if name == "50 ms":
            bars(rows, folder / "remote.png")
            text += "![These reads as bars](remote.png)\n\n"
        text += f"{table(rows)}\n\n{others(rows)}\n\n"
    insert(folder, "remote", text.strip())


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
