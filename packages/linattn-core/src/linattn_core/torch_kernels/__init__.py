"""The reference backend: the operators in plain torch, linear in time, bounded in memory."""
