"""The transformers configuration of `LinattnForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from transformers import PreTrainedConfig

from linattn_core.errors import expected
from linattn_models.heads import Categorical
from linattn_models.layers.config import TransformerConfig
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

_SMALL = TransformerConfig(num_layers=4, num_heads=4, head_dim=64, ffn_dim=1024)


class LinattnConfig(PreTrainedConfig):  # type: ignore[misc]
    """The configuration of `LinattnForCausalLM`, an `AutoregressiveTransformer` of a vocabulary.

    Args:
        transformer: the layers, a `TransformerConfig` or its `to_dict`; four small ones by default.
        vocab_size: the number of tokens.
        max_position_embeddings: the `max_length` of the model: tokens of a sequence.
        positions, start: as for `AutoregressiveTransformer`.
        use_cache: whether a forward in evaluation mode returns its state.
        **others: settings of every `PreTrainedConfig`, such as `eos_token_id`.

    Raises:
        ValueError: as for `TransformerConfig`.
    """

    model_type = "linattn"

    def __init__(
        self,
        transformer: TransformerConfig | Mapping[str, Any] = _SMALL,
        vocab_size: int = 256,
        max_position_embeddings: int | None = 1024,
        positions: str | None = None,
        start: bool = True,
        use_cache: bool = True,
        **others: Any,
    ) -> None:
        if not isinstance(transformer, TransformerConfig):
            transformer = TransformerConfig.from_dict(transformer)
        self.transformer = transformer.to_dict()
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.positions = transformer.with_positions(positions)[1]
        self.start = start
        self.use_cache = use_cache
        # Older files say False of every model.
        tied = transformer.tie_embeddings
        if others.pop("tie_word_embeddings", False) and not tied:
            advice = "set tie_embeddings of the transformer"
            raise ValueError(expected("tie_word_embeddings", False, True, advice))
        super().__init__(**others, tie_word_embeddings=tied)

    @classmethod
    def from_linattn(cls, model: AutoregressiveTransformer, **others: Any) -> LinattnConfig:
        """The configuration of an `AutoregressiveTransformer`.

        Args:
            model: a model with a `Categorical` head.
            **others: as for the class.

        Raises:
            ValueError: another head, whose outputs are not logits.
        """
        if not isinstance(model.head, Categorical):
            got = f"a {type(model.head).__name__}"
            advice = "transformers generates from logits: use this model's own generate"
            raise ValueError(expected("the head", "a Categorical", got, advice))
        described = model.to_dict()
        return cls(
            described["transformer"], model.head.vocabulary, described["max_length"],
            described["positions"], model.has_start, **others,
        )  # fmt: skip

    def to_linattn(self) -> AutoregressiveTransformer:
        """An `AutoregressiveTransformer` with newly drawn weights.

        Raises:
            ValueError: settings that the model cannot have.
        """
        return AutoregressiveTransformer(
            TransformerConfig.from_dict(self.transformer), self.vocab_size,
            self.max_position_embeddings, self.positions, self.start,
        )  # fmt: skip

    # The names that transformers uses for these settings.

    @property
    def num_hidden_layers(self) -> int:
        """Blocks of attention and feed-forward network."""
        return cast(int, self.transformer["num_layers"])

    @property
    def num_attention_heads(self) -> int:
        """Heads of attention in each block."""
        return cast(int, self.transformer["num_heads"])

    @property
    def hidden_size(self) -> int:
        """The width of the residual stream."""
        return self.num_attention_heads * cast(int, self.transformer["head_dim"])
