"""Cases and results, the timer, the runner, the limits of the machine, the oracle."""
