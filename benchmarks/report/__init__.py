"""What is written down: a document, its tables and a picture for each theme."""
