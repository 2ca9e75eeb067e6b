"""Writers and readers of datasets that several tests need."""
