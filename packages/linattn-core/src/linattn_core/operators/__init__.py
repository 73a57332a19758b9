"""The torch operators: schema, shape function and autograd of each, declared once for all backends.

    linattn::attention            forward, to be differentiated
    linattn::attention_forward    the same without gradients
    linattn::attention_backward   the gradients
    linattn::step                 one decoding step with gradients, the new state returned
    linattn::step_                the same without, the state updated in place

A call is one record; it is flat only while it passes through torch. The backend's name travels as
an argument, so that forward and backward agree although autograd runs the latter on threads of its
own.
"""

from linattn_core.operators.attention import attention
from linattn_core.operators.step import step, step_

__all__ = ["attention", "step", "step_"]
