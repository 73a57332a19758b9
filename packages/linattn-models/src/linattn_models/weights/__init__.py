"""The weights of a model: files, fewer bits, whether they are the same, and their description."""
