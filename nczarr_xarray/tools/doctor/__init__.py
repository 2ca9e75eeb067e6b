"""What a dataset's layout is like, and how fast it can be read: from its metadata alone."""
