"""The torch operators: schema, shape function and autograd of each, declared once for all backends.

    linattn::attention            forward, differentiable
    linattn::attention_forward    forward without gradients
    linattn::attention_backward   the gradients
    linattn::step                 one decoding step, differentiable; returns the new state
    linattn::step_                one decoding step without gradients; updates the state in place

A call is one record, which is flattened only to pass through torch's dispatcher. The backend's name
is an argument, so that forward and backward use the same backend although autograd runs the
backward pass on its own threads.
"""

from linattn_core.operators.attention import attention
from linattn_core.operators.attention_backward import BEFORE_CALL
from linattn_core.operators.flops import register_formulas
from linattn_core.operators.step import step, step_

register_formulas(BEFORE_CALL)

__all__ = ["attention", "step", "step_"]
