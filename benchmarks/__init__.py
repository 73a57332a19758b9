"""Benchmarks of linattn: how it is measured, the cases that are measured, the documents."""
