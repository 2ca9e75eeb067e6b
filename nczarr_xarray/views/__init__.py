"""Views of datasets for other software: any dataset as a zarr-python store, files as references."""
