"""The state between two steps of decoding.

decoding_state   the state of a model: all layers, positions, and the parameters of the next token
cache            the state of a layer: sums, or the keys and values of softmax
cursor           the position of each row
recent           the last tokens of each row, which the text of later ones needs
files            a state on disk
checks           checks of states and positions
"""

from linattn_core.torch_private import register_dataclass, register_namedtuple
from linattn_models.state.cache import (
    FixedState,
    KeyValueCache,
    LayerState,
    WindowCache,
    zero_states,
)
from linattn_models.state.checks import (
    check_end,
    check_fits,
    check_layers,
    check_parameters,
    known_parameters,
    of_another_model,
    room_for,
)
from linattn_models.state.cursor import START, Cursor
from linattn_models.state.decoding_state import DecodingState, layer_shape
from linattn_models.state.recent import NOTHING, RECENT, UNKNOWN, remember

__all__ = [
    "NOTHING",
    "RECENT",
    "START",
    "UNKNOWN",
    "Cursor",
    "DecodingState",
    "FixedState",
    "KeyValueCache",
    "LayerState",
    "WindowCache",
    "check_end",
    "check_fits",
    "check_layers",
    "check_parameters",
    "known_parameters",
    "layer_shape",
    "of_another_model",
    "remember",
    "room_for",
    "zero_states",
]

_NO_LEAVES = ("fingerprint", "recent")
# States are pytrees, and exported programs that take one can be saved and loaded.
for _cache in (KeyValueCache, WindowCache):
    register_namedtuple(_cache, f"linattn_models.{_cache.__name__}")
register_dataclass(Cursor, "linattn_models.Cursor")
register_dataclass(DecodingState, "linattn_models.DecodingState", without=_NO_LEAVES)
