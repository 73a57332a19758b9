"""LSH attention (Reformer; Kitaev, Kaiser and Levskaya, 2020), a rival of linear attention.

hashing        random rotations, buckets, and the order in which a round sorts the positions
windows        what a chunk sees in a round, and what an earlier round saw already
attending      forward: each round's softmax, joined to that of the rounds before
differentiating  backward: the same windows once more
operators      both as torch operators
functional     `lsh_attention`: checks, rotations, the call
"""

from linattn_models.lsh.functional import draw_rotations, lsh_attention

__all__ = ["draw_rotations", "lsh_attention"]
