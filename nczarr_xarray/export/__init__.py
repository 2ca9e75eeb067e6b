"""Export: xarray's datasets, and anything in our data model, as NCZarr or pure Zarr 2."""
