"""What measures: cases and results, one timer, one runner, limits of the machine, the oracle."""
