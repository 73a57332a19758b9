"""Linear attention in three plain forms that follow its equations; all are differentiable.

`quadratic` is the definition, `recurrent` the loop over positions, `chunked` the textbook mixture.
The backend "reference" is none of them: it is `reference_backend`, which saves time and memory.
"""

from linattn_core.reference.chunked_form import chunked
from linattn_core.reference.quadratic_form import quadratic
from linattn_core.reference.recurrent_form import recurrent

__all__ = ["chunked", "quadratic", "recurrent"]
