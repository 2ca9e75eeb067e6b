"""The chunk engine: locate, fetch, decode and scatter, for every format."""
