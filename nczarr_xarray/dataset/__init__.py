"""An open dataset: where the pure formats meet a store or a file, and its variables are read."""
