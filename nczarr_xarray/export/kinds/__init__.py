"""The kinds of target that ``nczarr copy`` writes: one module each, and one row in `table`."""
