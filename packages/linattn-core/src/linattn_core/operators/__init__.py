"""The torch operators: schema, shape function and autograd of each, declared once for all backends.

    linattn::attention            forward; also returns the normalizer for the backward pass
    linattn::attention_backward   its gradients
    linattn::step                 one decoding step, the new state returned
    linattn::step_                the same, the state updated in place

The backend's name travels as an argument, so that forward and backward agree although autograd
runs the latter on threads of its own.
"""

from linattn_core.operators.attention import attention
from linattn_core.operators.attention_backward import attention_backward
from linattn_core.operators.step import step, step_

__all__ = ["attention", "attention_backward", "step", "step_"]
