"""Requests: one policy, one client for each protocol, under keys and byte ranges alike."""
