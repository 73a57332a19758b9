"""Benchmarks of linattn: what measures, the cases that are measured, and their documents."""
