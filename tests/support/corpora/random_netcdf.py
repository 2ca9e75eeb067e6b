"""Random netCDF files by netCDF4-python: classic and netCDF-4, with groups, types and filters."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

from tests.support.corpora import random_values as values
from tests.support.corpora.random_hdf5 import Made

FORMATS: tuple[Any, ...] = (
    "NETCDF4",
    "NETCDF4",
    "NETCDF4_CLASSIC",
    "NETCDF3_CLASSIC",
    "NETCDF3_64BIT_OFFSET",
    "NETCDF3_64BIT_DATA",
)
#: What the first two classic formats know.
CLASSIC_NUMBERS = ("i1", "i2", "i4", "f4", "f8")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "zlib", "complevel": 1},
    {"compression": "zlib", "shuffle": False, "complevel": 9},
    {"compression": "zlib", "fletcher32": True},
    {"compression": "zlib", "complevel": 0},
    {"compression": "zstd"},
    {"compression": "bzip2"},
    {"compression": "blosc_lz4", "blosc_shuffle": 1},
    {"compression": "blosc_zstd", "blosc_shuffle": 2},
    {"compression": "blosc_zlib", "blosc_shuffle": 0},
    {"fletcher32": True},
    {"shuffle": True, "compression": None},
)
#: Bytes of a chunk: netCDF-C's filter fails if blosc does not make it shorter.
BLOSC_LEAST = 512
#: What decoding looks at.
CF: tuple[dict[str, Any], ...] = (
    {"scale_factor": 0.5, "add_offset": 10.0},
    {"scale_factor": np.float32(0.1)},
    {"units": "days since 2001-01-01", "calendar": "noleap"},
    {"units": "hours since 1900-01-01"},
    {"units": "m", "_Unsigned": "true"},
    {"coordinates": "lon lat"},
    {"valid_range": np.array([0, 5], "i2")},
)


class _Maker:
    def __init__(self, choose: random.Random, path: Path) -> None:
        self.choose = choose
        self.path = path
        self.format = choose.choice(FORMATS)
        self.steps = [self.format]
        self.netcdf4 = self.format == "NETCDF4"
        many = self.netcdf4 or self.format == "NETCDF3_64BIT_DATA"
        self.numbers = values.NUMBERS if many else CLASSIC_NUMBERS
        self.hdf5 = self.format.startswith("NETCDF4")
        self.types: dict[str, list[Any]] = {}

    def maybe(self, chance: float) -> bool:
        return self.choose.random() < chance

    def make(self) -> Made:
        with netCDF4.Dataset(self.path, "w", format=self.format) as dataset:
            if self.maybe(0.2):
                dataset.set_fill_off()
                self.steps.append("no fill")
                self.filled = False
            else:
                self.filled = True
            self.group(dataset, {}, set())
        if self.maybe(0.3) and self.filled:
            with netCDF4.Dataset(self.path, "a") as dataset:
                self.again(dataset)
        return Made(self.path, netcdf=True, alone=True, steps=self.steps, h5py_options={})

    def group(self, where: Any, above: dict[str, int | None], names: set[str]) -> None:
        choose = self.choose
        dimensions = dict(above)
        taken = set(names)  # a dimension of the same name further up is another case
        for _ in range(choose.choice([0, 1, 2, 3]) if above else choose.randint(1, 3)):
            unlimited = (self.netcdf4 or None not in dimensions.values()) and self.maybe(0.3)
            name = values.name(choose, taken)
            dimensions[name] = None if unlimited else choose.choice([1, 2, 3, 5, 12, 40])
            where.createDimension(name, dimensions[name])
            self.steps.append(f"{where.path} dimension {name} {dimensions[name]}")
        self.attributes(where)
        if self.netcdf4:
            self.user_types(where, taken)
        lengths = {name: size or choose.randint(1, 5) for name, size in dimensions.items()}
        own = [name for name in dimensions if name not in above]
        for name in own:
            if self.maybe(0.4):
                self.variable(where, name, (name,), lengths, dimensions)
        for _ in range(choose.randint(0, 5)):
            self.variable(
                where, values.name(choose, taken), self.some(dimensions), lengths, dimensions
            )
        if self.netcdf4 and not above:
            for _ in range(choose.choice([0, 0, 1, 2])):
                self.group(where.createGroup(values.name(choose, taken)), dimensions, taken)

    def some(self, dimensions: dict[str, int | None]) -> tuple[str, ...]:
        """Dimensions of a variable: one of records comes first in classic files."""
        count = self.choose.choice([0, 1, 1, 2, 2, 3])
        # of two unlimited ones netCDF-C returns what was in memory before
        fixed = [name for name, size in dimensions.items() if size is not None]
        chosen = [self.choose.choice(fixed) for _ in range(count)] if fixed else []
        records = [name for name, size in dimensions.items() if size is None]
        if records and self.maybe(0.5):
            at = 0 if not self.netcdf4 else self.choose.randint(0, len(chosen))
            chosen.insert(at, self.choose.choice(records))
        if self.hdf5:  # netCDF-C and xarray differ about a dimension that is used twice
            chosen = list(dict.fromkeys(chosen))
        return tuple(dict.fromkeys(chosen))

    def user_types(self, where: Any, taken: set[str]) -> None:
        choose = self.choose
        types = self.types.setdefault(where.path, [])
        if self.maybe(0.2):
            base = choose.choice(values.INTEGERS)
            types.append(
                where.createEnumType(
                    base, values.name(choose, taken), {"no": 0, "some": 7, "all": 99}
                )
            )
        if self.maybe(0.15):
            fields = [(f"f{n}", choose.choice(values.NUMBERS)) for n in range(choose.randint(1, 3))]
            dtype = np.dtype(fields, align=True)
            types.append(where.createCompoundType(dtype, values.name(choose, taken)))
        if self.maybe(0.15):
            base = choose.choice(values.NUMBERS)
            types.append(where.createVLType(base, values.name(choose, taken)))

    def variable(
        self,
        where: Any,
        name: str,
        dims: tuple[str, ...],
        lengths: dict[str, int],
        dimensions: dict[str, int | None],
    ) -> None:
        choose = self.choose
        types = self.types.get(where.path, [])
        kind: Any = choose.choice(self.numbers)
        if self.maybe(0.12):
            kind = "S1"
        elif self.netcdf4 and self.maybe(0.15):
            kind = str
        elif types and self.maybe(0.3) and name not in dims:
            kind = choose.choice(types)
            if isinstance(kind, netCDF4.VLType) and not dims:
                return  # netCDF4-python returns the elements of the one row
        options: dict[str, Any] = {}
        number = isinstance(kind, str) and kind != "S1"
        records = any(dimensions[d] is None for d in dims)
        if number and self.maybe(0.4):
            options["fill_value"] = values.number(choose, kind)
        elif number and self.maybe(0.1):
            options["fill_value"] = False
        if self.hdf5 and dims and (records or self.maybe(0.6)):
            options["chunksizes"] = tuple(
                choose.randint(1, dimensions[d] or max(1, lengths[d])) for d in dims
            )
            if number:
                options |= choose.choice(FILTERS)
            size = np.dtype(kind).itemsize * np.prod(options["chunksizes"]) if number else 0
            if "blosc" in str(options.get("compression")) and size < BLOSC_LEAST:
                del options["compression"], options["blosc_shuffle"]
        if self.hdf5 and number and kind[1] != "1" and self.maybe(0.3):
            options["endian"] = choose.choice(["big", "little"])
            kind = np.dtype(kind).newbyteorder(">" if options["endian"] == "big" else "<")
        self.steps.append(f"{where.path} variable {name} {kind} {dims} {options}")
        variable = where.createVariable(name, kind, dims, **options)
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        self.attributes(variable)
        few = "blosc" in str(options.get("compression"))
        if number and self.maybe(0.2):
            cf = choose.choice(CF)
            few = few or "since" in str(cf.get("units"))
            if options.get("endian") == "big" and "fill_value" in options:
                # xarray swaps the bytes of the fill value for engine netcdf4 (differences.md)
                cf = {key: value for key, value in cf.items() if key != "_Unsigned"}
            variable.setncatts(cf)
            self.steps.append(f"  {cf}")
        shape = tuple(lengths[d] for d in dims)
        safe = self.filled and options.get("fill_value", None) is not False
        written = choose.choice(["all", "all", "part", "nothing"]) if safe else "all"
        if not dims and written == "part":
            written = "all"
        self.steps.append(f"  writes {written}")
        if written == "nothing":
            return
        key = values.part(choose, shape) if written == "part" else tuple(map(slice, shape))
        data = self.data(
            0 if few else kind,
            tuple(len(range(*k.indices(n))) for k, n in zip(key, shape, strict=True)),
        )
        if isinstance(kind, netCDF4.VLType):
            starts = [k.start or 0 for k in key]
            for at in np.ndindex(data.shape):
                variable[tuple(s + n for s, n in zip(starts, at, strict=True)) or ...] = data[at]
        else:
            variable[key or ...] = data if dims or kind is not str else data[()]

    def data(self, kind: Any, shape: tuple[int, ...]) -> Any:
        choose = self.choose
        size = int(np.prod(shape))
        if kind == 0:
            return np.arange(size).reshape(shape) // 9 % 100
        if kind is str:
            return values.texts(choose, shape)
        if isinstance(kind, netCDF4.EnumType):
            return np.array(choose.choices([0, 7, 99], k=size), kind.dtype).reshape(shape)
        if isinstance(kind, netCDF4.CompoundType):
            array = np.zeros(shape, kind.dtype)
            for field in kind.dtype.names:
                array[field] = values.numbers(choose, shape, kind.dtype[field].str)
            return array
        if isinstance(kind, netCDF4.VLType):
            array = np.empty(shape, object)
            for at in np.ndindex(shape):
                array[at] = values.numbers(choose, (choose.choice([0, 1, 4, 60]),), kind.dtype.str)
            return array
        if isinstance(kind, str) and kind == "S1":
            return np.array(choose.choices([b"a", b"Z", b"", b" "], k=size), "S1").reshape(shape)
        return values.numbers(choose, shape, np.dtype(kind).str)

    def attributes(self, where: Any) -> None:
        choose = self.choose
        count = choose.choice([0, 1, 3]) if self.maybe(0.93) else choose.choice([12, 40])
        taken = {"_FillValue"}
        for _ in range(count):
            name = values.name(choose, taken)
            kind = choose.choice(["one", "many", "text", "texts", "none"])
            dtype = choose.choice(self.numbers)
            if kind == "one":
                where.setncattr(name, values.number(choose, dtype))
            elif kind == "many":
                where.setncattr(name, values.numbers(choose, (choose.randint(1, 9),), dtype))
            elif kind == "texts" and self.netcdf4:
                where.setncattr_string(name, list(values.texts(choose, (choose.randint(1, 3),))))
            elif kind == "none" and self.format != "NETCDF4_CLASSIC":
                where.setncattr(name, np.zeros(0, dtype))
            else:
                where.setncattr(name, values.text(choose))
        if count and self.maybe(0.2) and self.hdf5:
            where.delncattr(choose.choice(sorted(taken - {"_FillValue"})))

    def again(self, dataset: Any) -> None:
        """Change a file that was closed: new attributes, renamed things, more records."""
        choose = self.choose
        self.steps.append("opened again")
        for name, variable in list(dataset.variables.items()):
            variable.set_auto_maskandscale(False)
            if variable.dimensions == (name,):
                continue
            records = [dataset.dimensions[d] for d in variable.dimensions[:1]]
            growing = bool(records) and records[0].isunlimited() and variable.ndim == 1
            others = netCDF4.EnumType | netCDF4.VLType
            growing = growing and not isinstance(variable.datatype, others)
            if (
                growing
                and variable.dtype is not str
                and variable.dtype.kind in "iuf"
                and self.maybe(0.5)
            ):
                variable[len(records[0]) :] = values.numbers(choose, (2,), variable.dtype.str)
                self.steps.append(f"{name} grows")
            elif self.maybe(0.15):
                new = f"renamed_{name}"
                dataset.renameVariable(name, new)
                self.steps.append(f"{name} is now {new}")
        dataset.history = "changed" * choose.choice([1, 50])


def write(choose: random.Random, path: Path) -> Made:
    """Make a random file at `path`, by what `choose` says."""
    return _Maker(choose, path).make()
