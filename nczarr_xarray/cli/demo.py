"""``nczarr demo``: open the embedded dataset, compute, export, draw, read from far away."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nczarr_xarray.cli.main import NewParser

if TYPE_CHECKING:
    import xarray as xr

#: Real observations, written by netCDF-C; their sources are in ``demo_data/SOURCES.md``.
DATASET = Path(__file__).parent.parent / "demo_data" / "ocean_climate.nczarr"

#: Packages of the extra ``demo``.
_NEEDED = ("aiohttp", "dask", "h5netcdf", "h5py", "matplotlib")

#: Years of monthly data in the remote file.
_YEARS = 70

#: Months of data that a place needs for a yearly mean.
MONTHS_NEEDED = 6

#: First and last year whose months are the usual ones, from which anomalies are counted.
BASE_PERIOD = ("1981", "2010")


def add_demo(new: NewParser) -> None:
    """Make the parser of ``nczarr demo``."""
    parser = new(
        examples=[
            "nczarr demo --output pictures",
        ],
        description="Open the NCZarr dataset that ships with this package, print it, compute a "
        "mean with dask, write it to year.nczarr, and draw map.png and series.png. Then read a "
        "series from a netCDF-4 file on a server 50 ms away (it is in this process), with this "
        "package and with h5netcdf, and draw the requests of both as requests.png.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("nczarr-demo"),
        metavar="DIR",
        help="where everything goes (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit status (1 if a package is missing)."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = ", ".join(missing)
        raise ImportError(f"demo: needs {needed}; try: pip install 'nczarr-xarray[demo]'")
    import xarray as xr

    args.output.mkdir(parents=True, exist_ok=True)
    print(f'xr.open_dataset("{DATASET}", engine="nczarr", chunks={{}})\n')
    with xr.open_dataset(DATASET, engine="nczarr", chunks={}) as climate:
        print(climate, end="\n\n")
        year = climate[["sst", "uwnd", "vwnd"]].mean("month")
        months = climate["sst"].notnull().sum("month")
        year = year.where(months >= MONTHS_NEEDED)
        export(year, args.output / "year.nczarr")
    with xr.open_dataset(args.output / "year.nczarr", engine="nczarr") as stored:
        year = stored.load()
    print(f"Yearly mean, computed by dask: {global_mean(year['sst']):.1f} °C where ships sailed.")

    with xr.open_dataset(DATASET, engine="nczarr", group="relief") as relief:
        draw_map(year, relief, args.output / "map.png")
    with (
        xr.open_dataset(DATASET, engine="nczarr", group="nino12") as nino,
        xr.open_dataset(DATASET, engine="nczarr", group="mauna_loa") as mauna_loa,
    ):
        draw_series(nino["sst"], mauna_loa["co2"], args.output / "series.png")
    read_from_far_away(args.output / "requests.png")
    print("Written:")
    for name in ("year.nczarr", "map.png", "series.png", "requests.png"):
        print(f"  {(args.output / name).resolve()}")
    return 0


def export(year: xr.Dataset, path: Path) -> None:
    """Write the mean, which dask computes on the way, as compressed NCZarr."""
    encoding = {name: {"zlib": True, "complevel": 4} for name in year.data_vars}
    print(f'year.nczarr.to_nczarr("{path}", mode="w", encoding=...)')
    year.nczarr.to_nczarr(path, mode="w", encoding=encoding)


def read_from_far_away(picture: Path) -> None:
    """Serve a file, read a series from it with two libraries, print and draw what that takes."""
    import xarray as xr

    from nczarr_xarray.cli import demo_remote

    with xr.open_dataset(DATASET, engine="nczarr") as climate:
        files = {
            "sst.nc": demo_remote.netcdf4(climate, _YEARS),
            "first.nc": demo_remote.netcdf4(climate, 1),
        }
    about = (
        f"{_YEARS * 12} months at one place, from a file of {len(files['sst.nc']) / 1e6:.1f} MB\n"
        f"on a server {demo_remote.LATENCY * 1e3:.0f} ms away that sends "
        f"{demo_remote.BANDWIDTH * 8e-6:.0f} Mbit/s"
    )
    reads = demo_remote.measure(files)
    print(f"{about}:".replace("\n", " "))
    for read in reads:
        print(f"  {read.reader}: {read}")
    demo_remote.draw_requests(reads, about, picture)


def global_mean(field: xr.DataArray) -> float:
    """Return the mean of a (lat, lon) field, each cell weighted by its area."""
    import numpy as np

    area: Any = np.cos(np.deg2rad(field["lat"]))
    return float(field.weighted(area).mean())


def draw_map(year: xr.Dataset, relief: xr.Dataset, path: Path) -> None:
    """Draw temperature as colours, wind as arrows and the land in grey.

    Parameters
    ----------
    year
        ``sst`` (°C), ``uwnd`` and ``vwnd`` (m/s) on (lat, lon), longitudes 20 to 380.
    relief
        ``altitude`` (m) on (latitude, longitude).
    path
        The PNG to write.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), dpi=120, layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_facecolor("#e8ecef")
    levels = np.arange(-2, 31, 2)
    # without the darkest red, on which nobody sees the arrows
    shades = colormaps["YlOrRd"](np.linspace(0, 0.75, len(levels) + 1))
    colours = axes.contourf(
        year["lon"], year["lat"], year["sst"], levels=levels, colors=shades, extend="both"
    )
    wind = year.coarsen(lat=3, lon=4, boundary="trim").mean()
    wind = wind.where(abs(wind["lat"]) < 60)
    arrows = axes.quiver(
        wind["lon"], wind["lat"], wind["uwnd"], wind["vwnd"], color="#222222", scale=260,
        width=0.0011, headwidth=4.5, zorder=2,
    )  # fmt: skip
    grid = (relief["longitude"], relief["latitude"], relief["altitude"])
    axes.contourf(
        *grid,
        levels=[0, 250, 500, 1000, 2000, 3000, 9000],
        colors=["#cbc7be", "#bfbab0", "#b2aca1", "#a49d91", "#958d81", "#857d72"],
        zorder=3,
    )
    axes.contour(*grid, levels=[0], colors="#4a4a4a", linewidths=0.6, zorder=4)

    axes.set(xlim=(20, 380), ylim=(-72, 80), aspect="equal")
    axes.set_xticks(range(60, 361, 60), labels=["60°E", "120°E", "180°", "120°W", "60°W", "0°"])
    axes.set_yticks(range(-60, 61, 30), labels=["60°S", "30°S", "0°", "30°N", "60°N"])
    axes.set_title("Sea surface temperature and wind, mean of the year 1946–1989", loc="left")
    axes.quiverkey(arrows, 0.86, 1.04, 10, "10 m/s", labelpos="E")
    figure.colorbar(colours, ax=axes, label="SST (°C)", ticks=levels[1::2], shrink=0.82, pad=0.01)
    figure.supxlabel(
        "COADS ship reports (NOAA); pale grey: too few of them. Relief: ETOPO5 (NOAA).",
        fontsize="small", color="#555555",
    )  # fmt: skip
    figure.savefig(path)


def draw_series(sst: xr.DataArray, co2: xr.DataArray, path: Path) -> None:
    """Draw El Niño as anomaly of the temperature, and carbon dioxide below.

    Parameters
    ----------
    sst
        Monthly temperature (°C) of the Niño 1+2 region on (time).
    co2
        Weekly carbon dioxide (ppm) at Mauna Loa on (time).
    path
        The PNG to write.
    """
    from matplotlib.figure import Figure

    usual = sst.sel(time=slice(*BASE_PERIOD)).groupby("time.month").mean()
    anomaly = (sst.groupby("time.month") - usual).rolling(time=3, center=True).mean()
    smooth = co2.rolling(time=53, center=True, min_periods=40).mean()

    figure = Figure(figsize=(11, 5.6), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    time = anomaly["time"].values
    above.fill_between(time, anomaly.clip(min=0), color="#c8442f", linewidth=0)
    above.fill_between(time, anomaly.clip(max=0), color="#2f6fb0", linewidth=0)
    above.axhline(0, color="#444444", linewidth=0.8)
    whole_decades = anomaly.sel(time=slice("1951", "2010"))
    for _, decade in whole_decades.groupby((whole_decades["time.year"] - 1) // 10):
        warmest = decade.idxmax("time").dt
        above.annotate(
            warmest.strftime("%b %Y").item(), (warmest.floor("D").values, decade.max()), (0, 3),
            textcoords="offset points", ha="center", fontsize="small",
        )  # fmt: skip
    above.set_title(
        f"El Niño: anomaly of the sea surface temperature off Peru (Niño 1+2) from its mean of "
        f"{'–'.join(BASE_PERIOD)}, 3-month mean",
        loc="left",
    )
    above.set_ylabel("SST anomaly (°C)")

    below.plot(co2["time"], co2, color="#9aa5ad", linewidth=0.8, label="weekly")
    below.plot(smooth["time"], smooth, color="#1f2d36", linewidth=1.8, label="yearly mean")
    below.set_title("Carbon dioxide in the air of Mauna Loa, Hawaii", loc="left")
    below.set_ylabel("parts per million")
    below.legend(frameon=False, loc="upper left")
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01, y=0.12)
    figure.supxlabel(
        "Sources: NOAA CPC (ERSST v3b); C.D. Keeling and T.P. Whorf, CDIAC (2004).",
        fontsize="small", color="#555555",
    )  # fmt: skip
    figure.savefig(path)
