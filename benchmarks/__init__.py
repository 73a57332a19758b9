"""Benchmarks of linattn: one registry of cases, one timer, one runner, dated results."""
