"""Fill values that netCDF-C does not write: of another type, or of several elements."""

from __future__ import annotations

from pathlib import Path

import h5py

#: As long as ``_FillValue``, which netCDF-C takes in one type and one element only.
UNCHECKED = "_FillValuf"


def name_fill_values(path: Path) -> None:
    """Give each attribute `UNCHECKED` of a file or a tree that is closed its real name.

    ``netCDF4.Variable.renameAttribute`` does not serve: it hands netCDF-C a name whose memory has
    been given back, so that now and then no such attribute is found.
    """
    if path.is_dir():
        for document in path.rglob(".zattrs"):
            document.write_bytes(document.read_bytes().replace(UNCHECKED.encode(), b"_FillValue"))
    elif h5py.is_hdf5(path):
        with h5py.File(path, "r+") as file:
            file.visititems(_name_of_object)
    else:
        path.write_bytes(path.read_bytes().replace(UNCHECKED.encode(), b"_FillValue"))


def _name_of_object(_path: str, item: h5py.HLObject) -> None:
    if UNCHECKED in item.attrs:
        h5py.h5a.rename(item.id, UNCHECKED.encode(), b"_FillValue")
