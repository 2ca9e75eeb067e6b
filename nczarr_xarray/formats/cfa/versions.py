"""The versions of the convention that are written, for what imports no dialect: the command line.

`tests/xarray/formats/cfa/test_round_trip.py` compares them with the table of dialects.
"""

from __future__ import annotations

#: The names of `nczarr_xarray.formats.cfa.decode.WRITABLE`.
VERSIONS = ("0.4", "0.6.2", "1.13")
#: What `to_cfa` writes if none is asked for, and what all else writes then.
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
