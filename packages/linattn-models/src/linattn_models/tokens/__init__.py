"""Models of tokens: autoregressive and from one sequence to another, with their positions."""
