"""Zarr version 3, through zarr-python."""
