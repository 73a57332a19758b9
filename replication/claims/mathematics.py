"""Sections 3.2 to 3.4 and the supplement's A: equalities, complexities, constant states."""

from __future__ import annotations

from replication.claims.claim import ABOVE_ZERO, Claim, Rule

ROUNDING = 1e-10  # in float64, of values of size 1; four digits above what rounding leaves


def _equality(name: str, where: str, says: str) -> Claim:
    return Claim(
        name, where, says, "equations", Rule(name.split("/")[1], high=ROUNDING),
        unit="largest difference", paper="equal",
    )  # fmt: skip


def _growth(name: str, where: str, says: str, figure: str, low: float, high: float) -> Claim:
    return Claim(
        name, where, says, "lengths", Rule(figure, low, high),
        unit="exponent of N", paper=f"{(low + high) / 2:g}", hardware="any",
    )  # fmt: skip


# Name, place, statement; the name's second part is the figure.
EQUALITIES = (
    ("section3.2/associativity", "section 3.2, equations 4 to 6",
     "(phi(Q) phi(K)^T) V, normalized, equals phi(Q) (phi(K)^T V), normalized."),
    ("section3.3/causal", "section 3.3, equations 8 to 12",
     "Causal attention from running sums S_i and Z_i equals causally masked attention."),
    ("section3.3/gradients", "section 3.3, equations 13 to 15; supplement A",
     "The gradients come from running sums, too, and equal those of masked attention."),
    ("section3.4/rnn", "section 3.4, equations 16 to 20",
     "Position by position, with a state (s, z), the outputs are those of the whole sequence."),
)  # fmt: skip
# Name, place, statement, figure, bounds.
GROWTHS = (
    ("section3.2/softmax-time", "section 3.2, figure 1", "Softmax attention takes time of O(N^2).",
     "softmax, N x N/exponent", 1.85, 2.15),
    ("section3.2/linear-time", "section 3.2, figure 1", "Linear attention takes time of O(N).",
     "linear/exponent", 0.85, 1.15),
    ("section3.2/softmax-memory", "section 3.2, figure 1",
     "Softmax attention takes memory of O(N^2).", "softmax, N x N/memory-exponent", 1.85, 2.15),
    ("section3.3/constant-memory", "section 3.3, section 3.3.1",
     "Forward and backward keep no S_i a position: memory grows with N as the inputs do.",
     "linear/memory-exponent", 0.85, 1.15),
)  # fmt: skip
CLAIMS = (
    Claim(
        "section3.2/positive",
        "section 3.2.1, equation 7",
        "The feature map elu(x) + 1 makes every similarity positive.",
        "equations",
        Rule("positive", low=ABOVE_ZERO),
        unit="least similarity",
        paper="more than 0",
    ),
    *(_equality(*row) for row in EQUALITIES),
    *(_growth(*row) for row in GROWTHS),
    Claim(
        "section3.4/constant-step",
        "sections 3.4 and 4.2",
        "A step of generation costs the same at every position.",
        "decoding",
        Rule("linear/last-over-first", 0.9, 1.1),
        unit="time of the last step over the first",
        paper="1",
    ),
    Claim(
        "section3.4/constant-state",
        "sections 3.4 and 4.2",
        "The memory of an image is constant from the first to the last pixel.",
        "equations",
        Rule("constant-state", 1.0, 1.0),
        unit="bytes of state after 784 pixels over those after 1",
        paper="1",
    ),
)
