"""Classic netCDF files: CDF-1, CDF-2 (64-bit offset) and CDF-5 (64-bit data)."""
