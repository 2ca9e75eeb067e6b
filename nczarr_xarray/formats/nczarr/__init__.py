"""NCZarr of every generation, and pure Zarr v2: keys and bytes to the data model.

No I/O happens here. `walk` asks for objects and receives their bytes; `build`
makes the model from what the walk found.
"""
