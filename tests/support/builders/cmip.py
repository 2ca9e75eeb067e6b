"""Files of a small CMIP dataset, as another program writes them: by h5netcdf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np

#: Days of each file.
DAYS = 6
STEM = "tas_tavg-h2m-hxy-u_day_glb_g1_TEST_historical_r1i1p1f1"


@dataclass
class Draft:
    """A file that is to be written; tests change it.

    Attributes
    ----------
    variables
        Dimensions, values, attributes and options of each, by name.
    """

    name: str
    attributes: dict[str, Any]
    variables: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any], dict[str, Any]]]
    unlimited: set[str] = field(default_factory=lambda: {"time"})
    block: int = 1 << 16

    @property
    def days(self) -> np.ndarray:
        return self.variables["time"][1]

    def replace(self, name: str, change: Callable[[np.ndarray], Any]) -> None:
        dims, values, attributes, options = self.variables[name]
        self.variables[name] = dims, np.asarray(change(values)), attributes, options

    def write(self, folder: Path) -> Path:
        path = folder / self.name
        with h5netcdf.File(path, "w", meta_block_size=self.block) as file:
            lengths = {
                d: n
                for dims, v, _, _ in self.variables.values()
                for d, n in zip(dims, v.shape, strict=True)
            }
            file.dimensions = {d: None if d in self.unlimited else n for d, n in lengths.items()}
            for dimension in self.unlimited & lengths.keys():
                file.resize_dimension(dimension, lengths[dimension])
            file.attrs.update(self.attributes)
            for name, (dims, values, attributes, options) in self.variables.items():
                if not dims:
                    options = {key: one for key, one in options.items() if key == "fillvalue"}
                made = file.create_variable(name, dims, values.dtype, **options)
                made[...] = values
                made.attrs.update(attributes)
        return path


def drafts(count: int = 4, cells: int = 8) -> list[Draft]:
    """Return the files of a sound dataset, one after another in time."""
    found = []
    for number in range(count):
        days = np.arange(DAYS) + DAYS * number + 0.5
        rows = np.linspace(-80.0, 80.0, cells)
        columns = np.linspace(0.0, 315.0, cells)
        field_ = np.add.outer(days, np.add.outer(rows, columns)).astype("f4")
        times = {
            "units": "days since 1850-01-01",
            "calendar": "noleap",
            "bounds": "time_bnds",
            "axis": "T",
        }
        bounds = np.stack([days - 0.5, days + 0.5], -1)
        near = np.stack([rows - 1, rows + 1], -1)
        data = {
            "units": "K",
            "standard_name": "air_temperature",
            "cell_methods": "area: time: mean",
            "coordinates": "height",
        }
        one: dict[str, Any] = {
            "time": (("time",), days, times, {"chunks": (DAYS,)}),
            "time_bnds": (("time", "bnds"), bounds, {}, {"chunks": (DAYS, 2)}),
            "lat": (("lat",), rows, {"units": "degrees_north", "bounds": "lat_bnds"}, {}),
            "lat_bnds": (("lat", "bnds"), near, {}, {}),
            "lon": (("lon",), columns, {"units": "degrees_east"}, {}),
            "height": ((), np.array(2.0), {"units": "m", "positive": "up"}, {}),
            "tas": (
                ("time", "lat", "lon"),
                field_,
                data,
                {
                    "chunks": (DAYS, cells, cells),
                    "compression": "gzip",
                    "shuffle": True,
                    "fillvalue": np.float32(1e20),
                },
            ),
        }
        attributes = {
            "Conventions": "CF-1.12",
            "mip_era": "CMIP7",
            "variable_id": "tas",
            "source_id": "TEST",
            "experiment_id": "historical",
            "variant_label": "r1i1p1f1",
            "frequency": "day",
            "grid_label": "g1",
            "tracking_id": f"hdl:21.14107/{number}",
            "creation_date": f"2026-01-0{number % 9 + 1}T00:00:00Z",
            "realization_index": np.int32(1),
        }
        begin = 18500101 + DAYS * number
        name = f"{STEM}_{begin}-{begin + DAYS - 1}.nc"
        found.append(Draft(name, attributes, one))
    return found
