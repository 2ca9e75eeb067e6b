"""What others say of a dataset, and comparisons with it."""
