"""Codecs: from stored bytes to elements and back, one table of all there are."""
