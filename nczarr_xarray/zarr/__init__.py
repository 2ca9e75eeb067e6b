"""Stores of zarr-python as stores of ours, and the other way round. Neither knows of a format."""
