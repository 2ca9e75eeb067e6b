"""Make ``ocean_climate.nczarr``, the dataset that `nczarr demo` shows.

Everything in it is observed. netCDF-C writes it (through the netCDF4 package),
so that what ships with us is NCZarr as its inventor writes it. The raw input is
not kept in the repository; it comes from two ordinary packages::

    apt-get download ferret-datasets && dpkg-deb -x ferret-datasets_*.deb ferret
    pip download --no-deps --only-binary :all: statsmodels && unzip statsmodels-*.whl -d wheel
    python ci/make_demo.py ferret/usr/share/ferret-vis/data wheel/statsmodels/datasets

Made with ferret-datasets 7.6.0-5, statsmodels 0.15.0 and netCDF4 1.7.5 (netCDF-C
4.10.1); the same versions give the same bytes again. SOURCES.md beside the dataset
has the licences and lists what was changed.
"""

from __future__ import annotations

import calendar
import csv
import datetime as dt
import shutil
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

TARGET = Path(__file__).parents[1] / "nczarr_xarray/demo_data/ocean_climate.nczarr"
MISSING = -32768
MONTHS = calendar.month_name[1:]


def make(ferret: Path, statsmodels: Path, target: Path = TARGET) -> None:
    """Write the dataset to `target`, replacing what is there."""
    shutil.rmtree(target, ignore_errors=True)
    with netCDF4.Dataset(f"file://{target.resolve()}#mode=nczarr,file", "w") as root:
        root.setncatts(
            {
                "Conventions": "CF-1.11",
                "title": "Ocean and climate observations for the nczarr-xarray demo",
                "source": (
                    "COADS monthly climatology 1946-1989 from ship reports (NOAA), ETOPO5 relief "
                    "(NOAA NGDC), Nino 1+2 sea surface temperature (NOAA CPC), Mauna Loa CO2 "
                    "(Scripps, CDIAC); see SOURCES.md"
                ),
                "license": "public domain; notices in SOURCES.md",
                "references": "Woodruff et al. 1987; Keeling and Whorf 2004",
                "history": "repacked by make_demo.py of nczarr-xarray",
            }
        )
        write_climatology(root, ferret / "coads_climatology.cdf")
        write_relief(root.createGroup("relief"), ferret / "etopo60.cdf")
        write_nino(root.createGroup("nino12"), statsmodels / "elnino" / "elnino.csv")
        write_co2(root.createGroup("mauna_loa"), statsmodels / "co2" / "co2.csv")


def write_climatology(root: Any, path: Path) -> None:
    """Sea surface temperature and wind: (month, lat, lon), packed in 16 bits."""
    with netCDF4.Dataset(path) as coads:
        lat, lon = coads["COADSY"][:], coads["COADSX"][:]
        coordinate(root, "month", np.arange(1, 13), "i1", long_name="calendar month", units="1")
        names = root.createVariable("month_name", str, ("month",))
        names.long_name = "name of the calendar month"
        names[:] = np.array(MONTHS, object)
        coordinate(
            root, "lat", lat, "f4", standard_name="latitude", units="degrees_north", axis="Y"
        )
        coordinate(
            root, "lon", lon, "f4", standard_name="longitude", units="degrees_east", axis="X"
        )
        fields = (
            ("sst", "SST", 0.05, "sea_surface_temperature", "sea surface temperature", "degree_C"),
            ("uwnd", "UWND", 0.25, "eastward_wind", "eastward wind", "m s-1"),
            ("vwnd", "VWND", 0.25, "northward_wind", "northward wind", "m s-1"),
        )
        for name, source, step, standard_name, long_name, units in fields:
            packed(
                root.createVariable(
                    name,
                    "i2",
                    ("month", "lat", "lon"),
                    zlib=True,
                    complevel=9,
                    shuffle=True,
                    chunksizes=(4, 45, 90),
                    fill_value=np.int16(MISSING),
                ),
                coads[source][:],
                step,
                standard_name=standard_name,
                long_name=long_name,
                units=units,
                cell_methods="area: mean month: mean within years (1946-1989)",
            )


def write_relief(group: Any, path: Path) -> None:
    """Height of the land and depth of the sea on a 1 degree grid, in metres."""
    with netCDF4.Dataset(path) as etopo:
        lat, lon, height = etopo["ETOPO60Y"][:], etopo["ETOPO60X"][:], etopo["ROSE"][:]
    coordinate(group, "latitude", lat, "f4", standard_name="latitude", units="degrees_north")
    coordinate(group, "longitude", lon, "f4", standard_name="longitude", units="degrees_east")
    altitude = group.createVariable(
        "altitude", "i1", ("latitude", "longitude"), zlib=True, complevel=9, shuffle=True
    )
    altitude.setncatts(
        {
            "standard_name": "surface_altitude",
            "long_name": "relief of the Earth",
            "units": "m",
            # middles of 60 m steps, so that land stays above zero and sea below
            "scale_factor": np.float32(60),
            "add_offset": np.float32(30),
        }
    )
    altitude.set_auto_maskandscale(False)
    altitude[:] = np.floor(height / 60).astype("i1")


def write_nino(group: Any, path: Path) -> None:
    """Monthly sea surface temperature off Peru, 0-10 S and 90-80 W, 1950-2010."""
    with path.open() as file:
        rows = list(csv.reader(file))[1:]
    days = [
        days_since_1950(dt.date(int(row[0]), month, 15)) for row in rows for month in range(1, 13)
    ]
    time_axis(group, days)
    sst = group.createVariable("sst", "f4", ("time",), zlib=True, chunksizes=(366,))
    sst.setncatts(
        {
            "standard_name": "sea_surface_temperature",
            "long_name": "sea surface temperature, Nino 1+2 region",
            "units": "degree_C",
            "valid_range": np.array([15, 35], "f4"),
            "cell_methods": "area: time: mean",
        }
    )
    sst[:] = [float(value) for row in rows for value in row[1:]]


def write_co2(group: Any, path: Path) -> None:
    """Weekly carbon dioxide at Mauna Loa, 1958-2001; weeks without data are missing."""
    with path.open() as file:
        rows = list(csv.reader(file))[1:]
    group.featureType = "timeSeries"
    time_axis(group, [days_since_1950(dt.date.fromisoformat(row[0])) for row in rows])
    station = b"Mauna Loa Observatory, Hawaii"
    group.createDimension("name_length", len(station))
    name = group.createVariable("station_name", "S1", ("name_length",))
    name.setncatts({"long_name": "station name", "cf_role": "timeseries_id"})
    name[:] = np.frombuffer(station, "S1")
    for key, value, units in (
        ("lat", 19.536, "degrees_north"),
        ("lon", -155.576, "degrees_east"),
        ("alt", 3397.0, "m"),
    ):
        scalar = group.createVariable(key, "f8")
        scalar.units = units
        scalar[...] = value
    packed(
        group.createVariable(
            "co2",
            "i2",
            ("time",),
            zlib=True,
            shuffle=True,
            chunksizes=(1024,),
            fill_value=np.int16(MISSING),
        ),
        np.ma.masked_invalid([float(row[1] or "nan") for row in rows]),
        0.1,
        standard_name="mole_fraction_of_carbon_dioxide_in_air",
        long_name="carbon dioxide in air",
        units="ppm",
        coordinates="station_name lat lon alt",
    )


def coordinate(group: Any, name: str, values: Any, dtype: str, **attributes: str) -> None:
    """Add a dimension and its coordinate variable."""
    group.createDimension(name, len(values))
    variable = group.createVariable(name, dtype, (name,))
    variable.setncatts(attributes)
    variable[:] = values


def time_axis(group: Any, days: list[int]) -> None:
    """Add an unlimited time dimension in days since 1950."""
    group.createDimension("time", None)
    time = group.createVariable(
        "time", "i4", ("time",), zlib=True, shuffle=True, chunksizes=(1024,)
    )
    time.setncatts(
        {
            "standard_name": "time",
            "units": "days since 1950-01-01",
            "calendar": "standard",
            "axis": "T",
        }
    )
    time[:] = days


def days_since_1950(day: dt.date) -> int:
    """Days from 1950-01-01 to `day`."""
    return (day - dt.date(1950, 1, 1)).days


def packed(variable: Any, values: Any, step: float, **attributes: str) -> None:
    """Write masked `values` as whole multiples of `step`."""
    variable.setncatts({**attributes, "scale_factor": np.float32(step)})
    variable.set_auto_maskandscale(False)
    whole = np.rint(np.ma.filled(values, 0.0) / step).astype("i2")
    variable[:] = np.where(np.ma.getmaskarray(values), np.int16(MISSING), whole)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
