"""Verified byte ranges of one file, wherever it is: sources, planning of requests, caches."""
