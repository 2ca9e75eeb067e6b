"""Fixtures for all tests."""

from tests.s3server import s3_server  # noqa: F401
