"""The documents: one for each theme, with its tables."""
