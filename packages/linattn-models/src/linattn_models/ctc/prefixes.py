"""The tree of the prefixes of a beam search, with their scores from the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from linattn_core.errors import expected
from linattn_models.ctc.alignment import Floats


class LanguageModel(Protocol):
    """Gives probabilities of the phones after a prefix, which it knows by a state."""

    @property
    def start(self) -> Any:
        """The state of the empty prefix; states are hashable."""
        ...

    def advance(self, state: Any, phone: int) -> Any:
        """The state after one more phone."""
        ...

    def log_probs(self, state: Any) -> Floats:
        """(num_phones + 1,) natural logarithms: of the end at 0, of each phone at its class."""
        ...


class Prefixes:
    """A tree whose node 0 is the empty prefix, or what `prune` left as the root.

    Equal prefixes are one node.

    Args:
        num_classes: C, with the blank.
        lm, lm_weight, insertion_bonus: as for `BeamSearch`.

    Attributes:
        parents, lasts: for each node, the node of the prefix without its last phone, and that
            phone; -1 for the root, and 0 for the empty prefix.
        priors: for each node, what language model and bonus add to its score, in nats.
    """

    def __init__(
        self,
        num_classes: int,
        lm: LanguageModel | None,
        lm_weight: float,
        insertion_bonus: float,
    ) -> None:
        self.num_classes = num_classes
        self.parents, self.lasts, self.priors = [-1], [0], [0.0]
        self._lm = lm if lm_weight else None
        self._weight, self._bonus = lm_weight, insertion_bonus
        self._states = [None if self._lm is None else self._lm.start]
        self._children: dict[tuple[int, int], int] = {}
        self._steps: dict[Any, Floats] = {}
        if lm is not None and (known := len(lm.log_probs(lm.start)) - 1) != num_classes - 1:
            raise ValueError(expected("lm", f"{num_classes - 1} phones, as the frames", known))

    def extend(self, node: int, phone: int) -> int:
        """The node of a prefix extended by one phone; made if it does not exist."""
        child = self._children.get((node, phone))
        if child is None:
            child = self._children[node, phone] = len(self.parents)
            state = self._states[node]
            self.parents.append(node)
            self.lasts.append(phone)
            self.priors.append(self.priors[node] + float(self.steps(node)[phone]))
            self._states.append(None if self._lm is None else self._lm.advance(state, phone))
        return child

    def steps(self, node: int) -> Floats:
        """(C,): what each next phone would add to the prior; at 0, what the end would add."""
        state = self._states[node]
        if state not in self._steps:
            steps = np.zeros(self.num_classes)
            if self._lm is not None:
                steps += self._weight * self._lm.log_probs(state)
            steps[1:] += self._bonus
            self._steps[state] = steps
        return self._steps[state]

    def final_prior(self, node: int) -> float:
        """What language model and bonus add to the score of the whole labeling."""
        return self.priors[node] + float(self.steps(node)[0])

    def node(self, phones: Sequence[int]) -> int:
        """The node of the prefix with these phones."""
        node = 0
        for phone in phones:
            node = self.extend(node, phone)
        return node

    def prune(self, root: int, nodes: Sequence[int]) -> list[int]:
        """Keeps the paths from `root`, the new node 0, to the `nodes` below it.

        Returns:
            The new numbers of `nodes`.
        """
        used = {root}
        for node in nodes:
            while node not in used:
                used.add(node)
                node = self.parents[node]
        old = [root, *sorted(used - {root})]  # parents have smaller numbers than their children
        new = {node: place for place, node in enumerate(old)}
        self.parents = [-1, *(new[self.parents[node]] for node in old[1:])]
        self.lasts = [self.lasts[node] for node in old]
        self.priors = [self.priors[node] for node in old]
        self._states = [self._states[node] for node in old]
        pairs = zip(self.parents[1:], self.lasts[1:], strict=True)
        self._children = {pair: place for place, pair in enumerate(pairs, start=1)}
        kept = [new[node] for node in nodes]
        states = {self._states[node] for node in kept}
        self._steps = {state: self._steps[state] for state in states if state in self._steps}
        return kept

    def path(self, node: int) -> list[int]:
        """The nodes from the first below the root to `node`."""
        backwards = []
        while node:
            backwards.append(node)
            node = self.parents[node]
        return backwards[::-1]

    def phones(self, node: int) -> list[int]:
        """The phones of a prefix, from the root on."""
        return [self.lasts[step] for step in self.path(node)]
