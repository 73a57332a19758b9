"""What is written down: a document and its tables for each theme."""
