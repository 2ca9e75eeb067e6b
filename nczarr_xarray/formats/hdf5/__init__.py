"""HDF5 files, as netCDF-4 uses them: an asynchronous reader of their metadata.

Source: HDF5 File Format Specification, version 3.0 (sections in the modules), and files written by
libhdf5 1.8 to 2.2.
"""
