#!/usr/bin/env python3
"""Read what is written as CFA-0.4 and 0.6.2 with the last releases of others that know these.

    python ci/old_readers.py FOLDER

They need packages older than ours, so each gets a virtual environment of its own in FOLDER, which
is kept for the next time. cf-python also needs the library UDUNITS-2 (on Debian: libudunits2-0).
Masters are written by this interpreter: divided datasets, files that are aggregated, both plain
and packed. For each reader and master the table says whether the values are those that were
written. 1 is returned if one is not, unless docs/masters-for-others.md says that this reader fails
there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import nczarr_xarray  # noqa: E402 - the path comes first

_CF = """
import cf
values = cf.read(sys.argv[1])[0].array
"""
_CFAPYX = """
import xarray
from cfapyx.backend import CFANetCDFBackendEntrypoint as engine
values = xarray.open_dataset(sys.argv[1], engine=engine, mask_and_scale=True)["tas"].values
"""
_PRINT = """
import json, numpy
values = numpy.ma.filled(numpy.ma.asarray(values, float), numpy.nan)
print(json.dumps([values.shape, values.ravel().tolist()]))
"""
_PACKED = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -9}


@dataclass(frozen=True, slots=True)
class Reader:
    """A release of another reader.

    Parameters
    ----------
    version
        Of CFA, that it reads.
    packages
        Which have to be installed, to the release.
    code
        Reads ``sys.argv[1]`` as ``values``.
    fails
        Masters that it is known to read otherwise.
    """

    version: str
    packages: tuple[str, ...]
    code: str
    fails: frozenset[str] = frozenset()


READERS = {
    "cf-python 3.13.1": Reader(
        "0.4",
        ("cf-python==3.13.1", "cfdm==1.9.0.4", "netCDF4==1.6.5", "numpy==1.23.5", "setuptools<80"),
        _CF,
    ),
    "cf-python 3.16.2": Reader(
        "0.6.2",
        ("cf-python==3.16.2", "dask<2024.8", "netCDF4==1.6.5", "numpy<2", "setuptools<80"),
        _CF,
        frozenset({"divided, packed"}),
    ),
    "cfapyx 2024.11.27": Reader(
        "0.6.2",
        ("cfapyx==2024.11.27", "arraypartition==1.0.1", "netCDF4==1.6.5", "numpy<2"),
        _CFAPYX,
        frozenset({"aggregated, packed"}),
    ),
}


def main() -> int:
    """Check all readers; return how the process ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.absolute()
    dataset = example()
    wrong = 0
    for name, reader in READERS.items():
        python = environment(folder / name.replace(" ", "-"), reader.packages)
        masters = write(dataset, folder / f"masters-{reader.version}", reader.version)
        for title, master in masters.items():
            found = read(python, reader.code, master, dataset["tas"].values)
            known = title in reader.fails
            wrong += found != "equal" and not known
            print(f"{name:18} {reader.version:6} {title:21} {found}{' (known)' * known}")
    return 1 if wrong else 0


def example() -> xr.Dataset:
    """Return a dataset with missing data."""
    values = np.arange(480.0).reshape(8, 6, 10)
    values[3, 2, 1] = np.nan
    titles = {"time": "time", "lat": "latitude", "lon": "longitude"}
    units = {"time": "days since 2000-01-01", "lat": "degrees_north", "lon": "degrees_east"}
    return xr.Dataset(
        {"tas": (tuple(units), values, {"units": "K", "standard_name": "air_temperature"})},
        {
            name: (name, np.arange(float(size)), {"units": units[name], "standard_name": title})
            for (name, title), size in zip(titles.items(), values.shape, strict=True)
        },
    )


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """Return the interpreter of a virtual environment with packages, which is made if need be."""
    python = folder / "bin" / "python"
    done = folder / "installed.json"
    if not done.exists() or json.loads(done.read_text()) != list(packages):
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.write_text(json.dumps(packages))
    return python


def write(dataset: xr.Dataset, folder: Path, version: str) -> dict[str, Path]:
    """Write masters of a version; return them by title."""
    folder.mkdir(exist_ok=True)
    masters: dict[str, Path] = {}
    for kind, encoding in {"plain": {"_FillValue": -9.0}, "packed": _PACKED}.items():
        for form in ("CFA3", "CFA4") if version == "0.4" else ("CFA4",):
            title = f"divided, {kind}" + (", CFA3" if form == "CFA3" else "")
            masters[title] = folder / f"{kind}{form}.nca"
            nczarr_xarray.to_cfa(
                dataset,
                masters[title],
                mode="w",
                format=form,
                cfa_version=version,
                subarray_shape={"time": 3, "lon": 4},
                encoding={"tas": encoding},
                relative=False,
            )
        files = [folder / f"{kind}{number}.nc" for number in (2, 0, 3, 1)]
        for file in files:
            start = 2 * int(file.stem[-1])
            part = dataset.isel(time=slice(start, start + 2))
            part.to_netcdf(file, engine="netcdf4", encoding={"tas": encoding})
        masters[f"aggregated, {kind}"] = folder / f"{kind}.nca"
        nczarr_xarray.aggregate(
            files,
            masters[f"aggregated, {kind}"],
            cfa_version=version,
            overwrite=True,
            relative=False,
        )
    return masters


def read(python: Path, code: str, master: Path, expected: np.ndarray) -> str:
    """Return what another reader makes of a master: ``"equal"``, or what else."""
    program = f"import sys, warnings\nwarnings.simplefilter('ignore')\n{code}{_PRINT}"
    done = subprocess.run(
        [python, "-c", program, master], check=False, capture_output=True, text=True
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    shape, values = json.loads(done.stdout.strip().splitlines()[-1])
    same = np.array_equal(np.array(values).reshape(shape), expected, equal_nan=True)
    return "equal" if same else "other values"


if __name__ == "__main__":
    sys.exit(main())
