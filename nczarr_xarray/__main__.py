"""``python -m nczarr_xarray`` is ``nczarr``."""

from __future__ import annotations

import sys

from nczarr_xarray.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
