"""The registry: every number and statement of the paper (arXiv 2006.16236) and its supplement."""

from __future__ import annotations

from collections.abc import Sequence

from linattn_core.errors import expected, near, shown
from replication.claims import generation, learning, mathematics, pictures
from replication.claims.claim import Claim

CLAIMS: tuple[Claim, ...] = (
    *mathematics.CLAIMS, *learning.CLAIMS, *generation.CLAIMS, *pictures.CLAIMS,
)  # fmt: skip


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names or of places such as "table5" and "table5/mnist"; all for none.

    Raises:
        ValueError: a name is no claim's, with names that are near to it.
    """
    for name in names:
        if not any(_within(claim, name) for claim in CLAIMS):
            raise ValueError(expected("claim", "a claim or its place", shown(name), _near(name)))
    return [claim for claim in CLAIMS if not names or any(_within(claim, name) for name in names)]


def _within(claim: Claim, name: str) -> bool:
    return claim.name == name or claim.name.startswith(f"{name.rstrip('/')}/")


def _near(name: str) -> str:
    places = [claim.name.split("/")[0] for claim in CLAIMS]
    return near(name, dict.fromkeys([*(claim.name for claim in CLAIMS if "/" in name), *places]))
