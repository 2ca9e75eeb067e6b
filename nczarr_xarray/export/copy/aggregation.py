"""Copies to aggregations: a master, and fragments beside it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import xarray as xr

from nczarr_fsspec.errors import ExportError, LossWarning, NCZarrError, caller_level
from nczarr_xarray.backend.data_store import open_group
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.export.cfa.to_cfa import plan_new
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.form.storage import netcdf_text
from nczarr_xarray.export.options import CfaOptions, largest_fragment
from nczarr_xarray.export.parallel import distributed_client
from nczarr_xarray.formats.cfa.dialect import NEWEST
from nczarr_xarray.model import Group

#: Options of xarray to decode nothing.
AS_STORED: Mapping[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"),
    False,
)


def copy(request: CopyRequest) -> None:
    """Copy to an aggregation; groups are left out, with a warning."""
    with request.open() as source, request.cluster():
        root, *groups = source.hierarchy.root.walk()
        if groups:
            names = [group.path for group in groups]
            reason = f"an aggregation has no groups: {', '.join(names)} are left out"
            warning = LossWarning(f"{request.target}: {reason}", names)
            warnings.warn(warning, stacklevel=caller_level())
        lacking = Lacking(netcdf4=True)
        lacking.note_hidden(source.hierarchy)
        lacking.note_unused_enums(source.hierarchy)
        used = {dim for variable in root.variables.values() for dim in variable.dimensions}
        for dim in root.dimensions.values():
            if dim not in used:
                lacking.note("dimensions that no variable uses are left out", dim.path)
        held = {name: lacking.variable(variable) for name, variable in root.variables.items()}
        root = replace(root, variables=held)
        lacking.tell(request.target)
        try:
            opened = open_group(source, root, **AS_STORED)
        except NCZarrError:
            raise
        except ValueError as error:  # a dimension and a scalar of one name, for example
            reason = f"cannot become an aggregation, because xarray refuses it: {error}"
            raise ExportError(request.source, reason) from error
        dataset = _with_texts(_undecoded(opened), root)
        if distributed_client() is not None:
            dataset = _by_chunks(dataset)
        place = MasterPlace.find(request.target, request.target_options)
        asked = CfaOptions(
            largest_fragment(request.options.max_object_size, request.target_options),
            version=request.options.cfa_version or NEWEST,
            mode=request.mode,
            encoded=True,
        )
        task = plan_new(place, dataset, asked, before=source.refuse_changed)
        with request.progress() as progress:
            task.run(progress)


def _undecoded(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset that was opened `AS_STORED` with what decoding removed."""
    dataset = dataset.copy()
    for name, variable in dataset.variables.items():
        encoding = variable.encoding
        if variable.dtype.kind == "b":  # xarray decodes these whatever its options are
            stored = variable.astype("i1")
            stored.attrs["dtype"] = "bool"
            stored.encoding = encoding
            dataset[name] = stored
        elif getattr(encoding.get("dtype"), "byteorder", "=") == ">":
            encoding["endian"] = "big"
    return dataset


def _with_texts(dataset: xr.Dataset, stored: Group) -> xr.Dataset:
    """Return a dataset with texts of pure Zarr, which are stored as bytes, as texts."""
    names = [
        name
        for name in dataset.variables
        if (variable := stored.variables[str(name)]).dtype.kind == "S"
        and netcdf_text(variable).nc_type == "string"
    ]
    for name in names:
        dataset[name].attrs.setdefault("_Encoding", "utf-8")
    texts = xr.decode_cf(dataset[names], **{**AS_STORED, "concat_characters": True})
    return dataset.assign({name: texts[name] for name in names})


def _by_chunks(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset with arrays of dask, whose blocks the workers of a cluster read."""
    chunked = {}
    for name, variable in dataset.variables.items():
        preferred = variable.encoding.get("preferred_chunks") or {}
        if variable.ndim:  # by blocks, where several chunks are read together
            chunked[name] = variable.chunk(
                {d: preferred.get(d, n) for d, n in variable.sizes.items()}
            )
    return dataset.assign({name: chunked[name] for name in dataset.data_vars if name in chunked})
