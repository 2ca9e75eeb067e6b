"""``gs3://bucket/key``: Google Cloud Storage through its S3 interface, as netCDF-C spells it."""

from __future__ import annotations

from typing import Any, ClassVar

from nczarr_fsspec.transport.options import S3_EXTRA

try:
    from s3fs import S3FileSystem
except ImportError as error:
    raise ImportError(S3_EXTRA) from error


class GS3FileSystem(S3FileSystem):  # type: ignore[misc]  # s3fs has no types
    """s3fs on ``https://storage.googleapis.com``; keys are Google's HMAC keys.

    Takes the options of `s3fs.S3FileSystem`; ``endpoint_url`` overrides the endpoint.
    """

    protocol: ClassVar[tuple[str, ...]] = ("gs3",)

    def __init__(self, *args: Any, endpoint_url: str | None = None, **kwargs: Any) -> None:
        if not endpoint_url and not (kwargs.get("client_kwargs") or {}).get("endpoint_url"):
            endpoint_url = "https://storage.googleapis.com"
        super().__init__(*args, endpoint_url=endpoint_url, **kwargs)
