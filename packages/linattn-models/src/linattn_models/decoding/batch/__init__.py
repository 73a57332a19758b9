"""Continuous batching: requests join and leave a batch between steps.

engine     `ContinuousBatch`: requests wait, are read, and make steps
rows       which sequence is in which row, its state and last token
requests   what is asked and what comes out
"""

from linattn_models.decoding.batch.engine import ContinuousBatch
from linattn_models.decoding.batch.requests import Output, Request
from linattn_models.decoding.sampling import SamplingParams

__all__ = ["ContinuousBatch", "Output", "Request", "SamplingParams"]
