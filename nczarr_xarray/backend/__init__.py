"""The backend for xarray: ``engine="nczarr"``, lazy arrays, encoding."""
