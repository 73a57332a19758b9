"""LSH attention (Reformer; Kitaev, Kaiser and Levskaya, 2020), to compare with linear attention.

hashing     random rotations, buckets, and the order in which a round sorts the positions
windows     the keys that a chunk sees in a round, except those seen in earlier rounds
passes      forward and backward: the softmaxes of the rounds, joined
operators   forward and backward as torch operators
functional  `lsh_attention`: checks, rotations, the call
mixer       the layer of a transformer
"""

from linattn_models.attention.lsh.functional import draw_rotations, lsh_attention
from linattn_models.attention.lsh.mixer import LshMixer

__all__ = ["LshMixer", "draw_rotations", "lsh_attention"]
