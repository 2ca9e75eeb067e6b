"""Aggregations of many files, made from their metadata and coordinates alone.

`api` and `many` are what users call. `sources` finds the files, `request` says what is asked of
them. `reading` describes files, many at a time, `checks` compares them, `grid` finds their order by
the coordinates, and `combine` makes tables of fragments of that. `masters` takes a master apart, to
add files to it or to spell it otherwise, and says what one is to hold.
"""
