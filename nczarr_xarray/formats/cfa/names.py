"""What is known of the dialects before they are imported: how they are found, and asked for.

Datasets without aggregations, and the command line, do without the rest.
"""

from __future__ import annotations

#: One of these is an attribute of every aggregation variable.
MARKS = frozenset({"cfa_array", "cfa_group", "aggregated_data"})
#: The names of `nczarr_xarray.formats.cfa.decode.WRITABLE`: versions of the convention.
VERSIONS = ("0.4", "0.6.2", "1.13")
#: What `to_cfa` writes if none is asked for, and what all else writes then.
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
