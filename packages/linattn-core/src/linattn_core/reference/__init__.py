"""Three ways to compute the same thing, each as plain as its equations, and all differentiable."""

from linattn_core.reference.chunked_form import chunked
from linattn_core.reference.quadratic_form import quadratic
from linattn_core.reference.recurrent_form import recurrent

__all__ = ["chunked", "quadratic", "recurrent"]
