"""One command for a machine with a GPU and no network: build, test, measure, write it down."""
