"""Recorders of CUDA graphs where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from linattn_core.decoder_spec import CannotCompile
from linattn_models.decoding.recorders import CudaGraphRecorder


def test_a_model_that_is_not_on_a_gpu_is_refused() -> None:
    with pytest.raises(CannotCompile, match="a CUDA GPU, got cpu; move the model"):
        CudaGraphRecorder(torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(CannotCompile, match="finds no CUDA GPU"):
        CudaGraphRecorder(torch.device("cuda"))
