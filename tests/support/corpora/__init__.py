"""Datasets of many kinds: fixed ones, random ones, inputs of parsers."""
