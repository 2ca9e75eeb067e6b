"""Views of datasets for other software: any dataset as a zarr-python store, files as references.

Names are imported from the modules: those of the lower half know nothing of zarr-python.
"""
