"""What the reader promises, whatever was done to a dataset."""

from __future__ import annotations

import math
import pickle
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.keystore import check_key
from nczarr_xarray import NCZarrError, NCZarrWarning, open_hierarchy
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.model import Variable
from tests.support.corpora.samples import METADATA


class Spy(Mapping[str, bytes]):
    """A mapping that remembers every key it was asked for."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> bytes:
        self.asked.add(key)
        return self.objects[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    def check(self) -> None:
        """Fail if a key was asked for that leads out of the dataset."""
        for key in self.asked:
            check_key(key)


#: Elements of a variable that is not read as a whole.
LARGE = 1_000_000

Values = dict[str, np.ndarray[Any, Any] | NCZarrError]


def as_remote(objects: Mapping[str, bytes]) -> Any:
    """The same in a store that answers from an event loop, as those behind networks do."""
    from zarr.core.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    return MemoryStore({key: Buffer.from_bytes(data) for key, data in objects.items()})


def read_all(objects: Mapping[str, bytes], *, remote: bool = False) -> Values | NCZarrError:
    """Every variable by path, or why not; anything but an error of ours gets out."""
    spy = Spy(objects)
    values: Values = {}
    try:
        opened = open_hierarchy(as_remote(objects) if remote else spy)
        for group in opened.hierarchy.root.walk():
            for variable in group.variables.values():
                values[variable.path] = _read(opened, variable)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    finally:
        spy.check()
    return values


def _read(opened: Opened, variable: Variable) -> np.ndarray[Any, Any] | NCZarrError:
    key = (slice(None),) * len(variable.shape)
    shape = variable.shape
    try:
        if math.prod(shape) > LARGE:  # what is said to be large takes long: its last corner
            key = tuple(slice(size - 1, None) for size in shape)
            shape = (1,) * len(shape)
        data = opened.read(variable, key)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    assert data.shape == shape, variable
    if variable.dtype.kind != "O":
        assert data.dtype == variable.dtype.newbyteorder("="), variable
    return data


def check_untouched(before: Values, after: Values, touched: set[str]) -> None:
    """Fail if a variable reads differently although nothing of it was changed.

    What a group says concerns everything, so there is nothing to check if that
    was changed.
    """
    holders = {key.rpartition("/")[0] for key in touched if key.rpartition("/")[2] in METADATA}
    if not all(f"/{holder}" in before for holder in holders):
        return
    changed = {f"/{key.rpartition('/')[0]}" for key in touched} | {
        path for path in before if any(f"/{key}".startswith(f"{path}/") for key in touched)
    }
    for path, value in before.items():
        if path in changed or isinstance(value, NCZarrError):
            continue
        found = after[path]
        assert not isinstance(found, NCZarrError), (path, found)
        np.testing.assert_array_equal(found, value, err_msg=path)


def open_with_xarray(objects: Mapping[str, bytes], **options: Any) -> dict[str, xr.Dataset] | None:
    """All groups, looked at in every way that must not raise; None if the root is refused.

    A variable that cannot be read may raise when it is loaded, and nowhere else.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store: Any = dict(objects)
        try:
            groups = xr.open_groups(store, engine="nczarr", **options)
        except NCZarrError:
            return None
    warned = "\n".join(str(w.message) for w in caught if w.category is NCZarrWarning)
    for path, dataset in groups.items():
        repr(dataset)
        again = pickle.loads(pickle.dumps(dataset))
        assert list(again.variables) == list(dataset.variables)
        for name, variable in dataset.variables.items():
            try:
                large = math.prod(variable.shape) > LARGE
                (variable[(-1,) * variable.ndim] if large else variable.copy()).load()
            except NCZarrError as error:
                # a chunk may say so only now; metadata must have said so before
                known = ".z" in error.object or ".ncz" in error.object
                label = f"{path.rstrip('/')}/{name}"
                assert not known or repr(label) in warned, (label, error)
            except Exception as error:
                # xarray may find out only here that the attributes are nonsense
                files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
                if any("nczarr_" in file for file in files):
                    raise
    return groups
