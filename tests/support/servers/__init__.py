"""Servers, networks and clusters on this machine, with faults that can be chosen."""
