"""The kinds of target that ``nczarr copy`` writes: a row in `table` each, and modules."""
