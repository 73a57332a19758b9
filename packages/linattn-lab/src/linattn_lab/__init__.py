"""What experiments share: scripts, comparisons, tables, plots, timing. Imports nothing itself."""
