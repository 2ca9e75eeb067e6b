"""Export: xarray's datasets, and anything in our data model, as trees, files or aggregations."""
