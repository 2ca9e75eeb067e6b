"""Damage, killed writers, full disks, refused calls; and what is promised then."""
