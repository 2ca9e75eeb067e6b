"""Changes of a dataset that are valid as a whole or not at all; start with `journal`."""
