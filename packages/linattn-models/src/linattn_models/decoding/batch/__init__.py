"""Continuous batching: requests join and leave a batch between steps.

engine     `ContinuousBatch`, which owns the rows and makes the steps
requests   what is asked and what comes out
places     the settings and random numbers of each row
"""

from linattn_models.decoding.batch.engine import ContinuousBatch
from linattn_models.decoding.batch.requests import Output, Request, SamplingParams

__all__ = ["ContinuousBatch", "Output", "Request", "SamplingParams"]
