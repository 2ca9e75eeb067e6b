"""Readers of file formats: pure functions from bytes to the data model."""
