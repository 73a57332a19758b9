"""The transformer of vectors, its blocks and its configuration."""
