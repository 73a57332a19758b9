"""Models on many ranks: styles for `torch.distributed.tensor.parallel`.

mesh = init_device_mesh("cpu", (data, context), mesh_dim_names=("data", "context"))
parallelize_module(model, mesh["context"], ContextParallel())

ContextParallel    divides the length of a sequence
TensorParallel     divides the heads and the weights of each layer
"""

from linattn_models.parallel.context import ContextParallel, sum_gradients
from linattn_models.parallel.tensor import TensorParallel

__all__ = ["ContextParallel", "TensorParallel", "sum_gradients"]
