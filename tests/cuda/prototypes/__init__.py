"""Tests of the ladder: its kernels emulated, compiled, and where there is a GPU, run."""
