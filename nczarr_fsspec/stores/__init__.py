"""Key stores: one module per kind of place that a dataset can lie in."""
