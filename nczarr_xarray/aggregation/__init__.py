"""Aggregations of many files, made from their metadata and coordinates alone.

`api` and `many` are what users call. `sources` finds the files, `request` says what is asked of
them. `joining` goes on from there: `reading` describes files, many at a time, `checks` compares
them, `grid` finds their order by the coordinates, some of which only names of files say (`labels`),
and `combine` makes tables of fragments of that. `report` says what does not fit. `masters` takes a
master apart, to add files to it or to spell it otherwise, and says what one is to hold.
"""
