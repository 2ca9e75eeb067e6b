"""Aggregations: variables whose data are fragments in other datasets (CFA and CF-1.13).

A dialect is a row of `nczarr_xarray.formats.cfa.decode.WRITABLE`, or of `DIALECTS` there if it is
only read. The table that all of them are read into, and written from, is
`nczarr_xarray.model.Fragments`.
"""
