"""NCZarr and Zarr for xarray: ``engine="nczarr"`` to open, ``ds.nczarr.to_nczarr`` to export.

Importing this package imports nothing that is heavy; each name is loaded when it is first used.
xarray's objects get their ``.nczarr`` when both are imported, in whatever order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nczarr_xarray._version import __version__ as __version__
from nczarr_xarray.import_hooks import when_imported

if TYPE_CHECKING:
    from nczarr_fsspec.errors import AccessDeniedError as AccessDeniedError
    from nczarr_fsspec.errors import ChangedError as ChangedError
    from nczarr_fsspec.errors import ConflictError as ConflictError
    from nczarr_fsspec.errors import DatasetExistsError as DatasetExistsError
    from nczarr_fsspec.errors import DatasetNotFoundError as DatasetNotFoundError
    from nczarr_fsspec.errors import ExportError as ExportError
    from nczarr_fsspec.errors import FormatError as FormatError
    from nczarr_fsspec.errors import IncompleteExportError as IncompleteExportError
    from nczarr_fsspec.errors import LossWarning as LossWarning
    from nczarr_fsspec.errors import NCZarrError as NCZarrError
    from nczarr_fsspec.errors import NCZarrWarning as NCZarrWarning
    from nczarr_fsspec.errors import StoreError as StoreError
    from nczarr_fsspec.errors import URLError as URLError
    from nczarr_xarray._version import show_versions as show_versions
    from nczarr_xarray.accessor import register as register
    from nczarr_xarray.aggregation.api import aggregate as aggregate
    from nczarr_xarray.aggregation.api import convert_references as convert_references
    from nczarr_xarray.aggregation.many import open_many as open_many
    from nczarr_xarray.backend.data_store import load_dataset as load_dataset
    from nczarr_xarray.backend.data_store import state as state
    from nczarr_xarray.backend.entrypoint import prefer as prefer
    from nczarr_xarray.backend.loading import iterate as iterate
    from nczarr_xarray.backend.loading import load as load
    from nczarr_xarray.backend.loading import load_async as load_async
    from nczarr_xarray.dataset.dataset import Opened as Opened
    from nczarr_xarray.dataset.open import open_hierarchy as open_hierarchy
    from nczarr_xarray.export.api import recover as recover
    from nczarr_xarray.export.api import to_nczarr as to_nczarr
    from nczarr_xarray.export.cfa.to_cfa import to_cfa as to_cfa
    from nczarr_xarray.tools.check import check_cmip7 as check_cmip7
    from nczarr_xarray.tools.compare import compare as compare
    from nczarr_xarray.tools.copy import copy as copy
    from nczarr_xarray.tools.doctor import doctor as doctor
    from nczarr_xarray.tools.trace import trace as trace
    from nczarr_xarray.tools.upgrade import upgrade as upgrade
    from nczarr_xarray.tools.validate import validate as validate
    from nczarr_xarray.views.references import references as references
    from nczarr_xarray.views.store import open_store as open_store
    from nczarr_xarray.views.virtualizarr import NCZarrParser as NCZarrParser

_MODULES = {
    "nczarr_fsspec.errors": [
        "AccessDeniedError",
        "ChangedError",
        "ConflictError",
        "DatasetExistsError",
        "DatasetNotFoundError",
        "ExportError",
        "FormatError",
        "IncompleteExportError",
        "LossWarning",
        "NCZarrError",
        "NCZarrWarning",
        "StoreError",
        "URLError",
    ],
    "nczarr_xarray._version": ["show_versions"],
    "nczarr_xarray.aggregation.api": ["aggregate", "convert_references"],
    "nczarr_xarray.aggregation.many": ["open_many"],
    "nczarr_xarray.accessor": ["register"],
    "nczarr_xarray.backend.data_store": ["load_dataset", "state"],
    "nczarr_xarray.backend.entrypoint": ["prefer"],
    "nczarr_xarray.backend.loading": ["iterate", "load", "load_async"],
    "nczarr_xarray.export.api": ["recover", "to_nczarr"],
    "nczarr_xarray.export.cfa.to_cfa": ["to_cfa"],
    "nczarr_xarray.dataset.open": ["open_hierarchy"],
    "nczarr_xarray.dataset.dataset": ["Opened"],
    "nczarr_xarray.tools.check": ["check_cmip7"],
    "nczarr_xarray.tools.compare": ["compare"],
    "nczarr_xarray.tools.copy": ["copy"],
    "nczarr_xarray.tools.trace": ["trace"],
    "nczarr_xarray.tools.upgrade": ["upgrade"],
    "nczarr_xarray.tools.validate": ["validate"],
    "nczarr_xarray.tools.doctor": ["doctor"],
    "nczarr_xarray.views.references": ["references"],
    "nczarr_xarray.views.store": ["open_store"],
    "nczarr_xarray.views.virtualizarr": ["NCZarrParser"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_MODULE_OF)


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _register_accessors() -> None:
    from nczarr_xarray.accessor import register_accessors

    register_accessors()


when_imported("xarray", _register_accessors)
