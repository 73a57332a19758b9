"""An `AutoregressiveTransformer` as a model of transformers, with saving, loading, generation."""

from __future__ import annotations

import copy
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from linattn_core.errors import expected
from linattn_models.basics.files import replace_file
from linattn_models.basics.validation import instance
from linattn_models.heads.base import check_sequences
from linattn_models.huggingface.cache import CACHE, StateLayer, either_cache, state_layer
from linattn_models.huggingface.configuration import LinattnConfig
from linattn_models.huggingface.padding import Padding, check_left_padded
from linattn_models.huggingface.steps import Steps
from linattn_models.huggingface.translation import from_transformers
from linattn_models.state import DecodingState, check_end
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

_CARD = """\
---
library_name: transformers
tags: [linattn, linear-attention]
---

A causal language model with linear attention. It needs the package linattn-models with its extra
[transformers], and the first import below, which makes it known to the Auto classes:

```python
import linattn_models.huggingface
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("this folder")
```
"""

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# What `generate` passes in a step. transformers' own method takes as long for it as a small layer.
_OF_A_STEP = {"logits_to_keep", "next_sequence_length", "use_cache", CACHE}


class LinattnForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """An `AutoregressiveTransformer` with the interface of transformers' language models.

    It is registered with `AutoModelForCausalLM`, and `generate` works from a state whose size does
    not grow. `model.model` is the `AutoregressiveTransformer`: `save(model.model, folder)` writes
    it in linattn's format, and `from_linattn(load(folder))` wraps it again.

    Args:
        config: the sizes; weights are drawn as those of `AutoregressiveTransformer`.
    """

    config_class = LinattnConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True  # no token can be taken back, so generation is not speculative
    _no_split_modules = ("AutoregressiveTransformer",)  # on one device, whatever device_map says

    def __init__(self, config: LinattnConfig) -> None:
        super().__init__(config)
        self.model = config.to_linattn()
        for drawn in self.state_dict(keep_vars=True).values():
            drawn._is_hf_initialized = not drawn.is_meta
        self.post_init()

    @classmethod
    def from_linattn(cls, model: AutoregressiveTransformer, **config: Any) -> LinattnForCausalLM:
        """Wraps a model, which is not copied.

        Args:
            model: a model with a `Categorical` head.
            **config: as for `LinattnConfig`, such as `eos_token_id`.

        Raises:
            ValueError: another head.
        """
        described = LinattnConfig.from_linattn(model, dtype=model.output.weight.dtype, **config)
        with torch.device("meta"):
            wrapped = cls(described)
        wrapped.model = model
        return cast(LinattnForCausalLM, wrapped.train(model.training))

    @classmethod
    def from_transformers(cls, model: PreTrainedModel) -> LinattnForCausalLM:
        """A language model of transformers as this class, converted by `convert` or not.

        Its weights are copied, as by `linattn_models.huggingface.from_transformers`; special tokens
        and settings of generation are the model's. `save_pretrained` of the result is how a
        converted model is saved, so that `AutoModelForCausalLM` and pipelines load it.

        Raises:
            ValueError, TypeError: as `linattn_models.huggingface.from_transformers`.
        """
        tokens = {name: getattr(model.config, name, None) for name in _TOKENS}
        wrapped = cls.from_linattn(from_transformers(model), **tokens)
        wrapped.generation_config = copy.deepcopy(model.generation_config)
        return wrapped

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        past_key_values: Cache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The logits of the token after each token.

        Args:
            input_ids: (B, N) int64, N at most max_position_embeddings. With a state in `cache`,
                only the new tokens. In a model with a start vector, which takes a position,
                max_position_embeddings tokens leave no position for the last of them: the logits
                after it mean nothing.
            attention_mask: (B, L), 0 for padding, which may be anywhere: it does not change the
                logits of a row. L is N, or also counts the tokens of the state.
            labels: (B, N) int64, the tokens themselves, -100 where they do not count; the loss is
                the mean of -log p(labels[:, i + 1] | input_ids[:, :i + 1]).
            cache: updated in place; empty at first.
            use_cache: whether to return the state; by default as configured, but only in evaluation
                mode and with attention that has one. A forward with a state has no dropout.
            logits_to_keep: how many of the last positions get logits, or their indices; 0 for all.
            return_dict: False for a tuple; by default as configured.
            num_items_in_batch: the number by which the summed loss is divided, from Trainer, which
                counts all labels but the first column and -100. The first token of a row with
                padding before it is one of them: a start vector predicts it, and a model without
                one has no loss there. By default the number of labels that count, each after a
                token of its row.
            past_key_values: the cache, by its name before transformers 5.24.
            **others: refused unless None or False, such as inputs_embeds and output_attentions.

        Returns:
            loss (with labels), logits (B, N, V) and the cache (with use_cache), by the name that
            transformers gives it. Logits at padded positions are those of the tokens before.

        Raises:
            ValueError, TypeError: another shape, dtype, length or token; a state of other sizes,
                or with LSH; offloaded weights. Other weights of the same sizes are not noticed: a
                cache has no fingerprint.

        Cost: O(N) time; one token after a state costs the same at every position. Without gradients
        and in evaluation mode, such steps are compiled from the 17th of a cache on, or from the
        first where the packed weights are still those of the model; see `generate` of
        `AutoregressiveTransformer`. Changed weights are packed again. A write through `.data`
        between two steps is seen only at the next prompt.
        """
        cache = either_cache(cache, past_key_values)
        self._refuse(others)
        instance("input_ids", input_ids, Tensor)
        input_ids = cast(Tensor, input_ids)
        if attention_mask is not None:
            instance("attention_mask", attention_mask, Tensor)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and self.model.can_step
            use_cache = use_cache and not (cache is None and self._is_full(input_ids))
        layer = None
        if cache is not None or use_cache:
            self._refuse_state()
            cache = DynamicCache() if cache is None else cache
            layer = state_layer(cache, 0)
        positions = (
            slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        )
        if layer is None or layer.state is None:
            hidden = self._begin(input_ids, attention_mask, layer)
            logits = self.model.output(hidden[:, positions])
        else:
            logits = self._continue(input_ids, attention_mask, layer, positions)
        loss = None
        if labels is not None:
            if num_items_in_batch is None or not self.model.has_start:
                labels = _select_predicted(labels, attention_mask)
            loss = self.loss_function(
                logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        out = CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return out.to_tuple() if as_tuple else out

    def save_pretrained(self, save_directory: str | PathLike[str], **options: Any) -> None:
        """As in `PreTrainedModel`; also a README.md that says how to load the folder."""
        super().save_pretrained(save_directory, **options)
        card = Path(save_directory, "README.md")
        if Path(save_directory).is_dir() and not card.exists():
            replace_file(card, _CARD.encode())

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The arguments that `generate` passes to `forward`."""
        # A piece of longer prompts comes without a `next_sequence_length`.
        check_left_padded(attention_mask, allows_empty="next_sequence_length" not in kwargs)
        one = kwargs.get("next_sequence_length") == 1 and kwargs.keys() == _OF_A_STEP
        if one and input_ids.device == self.model.device:
            del kwargs["next_sequence_length"]
            return {"input_ids": input_ids[:, -1:], "attention_mask": attention_mask, **kwargs}
        inputs = super().prepare_inputs_for_generation(
            input_ids, attention_mask=attention_mask, **kwargs
        )
        inputs.pop("position_ids", None)  # the mask gives the positions of a row
        inputs["attention_mask"] = attention_mask  # (B, L), also with a static cache
        return cast(dict[str, Any], inputs)

    def generate_batch(self, *args: Any, **options: Any) -> Any:
        """Refuses: transformers' batches page a cache of keys and values, which it has not."""
        self.init_continuous_batching()

    def init_continuous_batching(self, *args: Any, **options: Any) -> Any:
        """Refuses, as `generate_batch`, which `cache_implementation="paged"` calls."""
        raise NotImplementedError(
            "A LinattnForCausalLM has no paged cache; pass its model to "
            "linattn_models.ContinuousBatch, which batches requests that come and go."
        )

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.model.embeddings[0]

    def get_output_embeddings(self) -> nn.Module:
        """The projection to logits."""
        return self.model.output

    def resize_token_embeddings(self, *sizes: Any, **options: Any) -> Any:
        """Refuses to change the vocabulary: build a model with the new one."""
        raise NotImplementedError(
            "A LinattnForCausalLM cannot change its vocabulary; build one with another vocab_size "
            "and copy the rows of its tables."
        )

    def _init_weights(self, module: nn.Module) -> None:
        """Refuses weights that are missing in a folder, which transformers would draw anew."""
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        missing = [
            name for name, x in own if not (x.is_meta or getattr(x, "_is_hf_initialized", False))
        ]
        if missing:
            got = f"none of the right shape for {', '.join(missing)} of a {type(module).__name__}"
            raise ValueError(expected("the folder", "all weights of its config", got))

    def _refuse_state(self) -> None:
        """Refuses a state where the attention has none."""
        if not self.model.can_step:
            got = f"{self.model.config.attention} attention, which has none"
            advice = "pass use_cache=False, which runs all tokens again for each new one"
            raise ValueError(expected("use_cache", "attention with a state", got, advice))

    def _refuse(self, others: dict[str, Any]) -> None:
        """Refuses arguments of other models, and weights that are not on the device."""
        for name, value in others.items():
            if value is not None and value is not False:
                advice = "a LinattnForCausalLM takes token ids and gives logits alone"
                raise ValueError(expected(name, "none", type(value).__name__, advice))
        if self.model.output.weight.is_meta:
            advice = "load the model without offloading its weights"
            raise ValueError(expected("device_map", "a device", "weights elsewhere", advice))

    def _begin(self, ids: Tensor, mask: Tensor | None, layer: StateLayer | None) -> Tensor:
        """The last layer's outputs (B, N, E) after each token of whole sequences."""
        model, is_full = self.model, self._is_full(ids)
        longest = model.longest if layer is None else model.most_tokens(model.longest)
        check_sequences(model.head, ids, 1, longest)
        padding = Padding.of(mask, ids)
        vectors = model._enter(padding.to_the_end(ids))
        vectors = vectors[:, :-1] if is_full else vectors
        inputs = None
        if padding.lengths is not None:
            inputs = (padding.lengths + model.has_start).clamp(max=vectors.shape[1])
        if layer is None:
            hidden = model.transformer(vectors, inputs)
        else:
            room = self._room(vectors.shape[1])
            hidden, layer.state = model.transformer.prefill(vectors, inputs, max_length=room)
            layer.seen = ids.shape[1]
        # After the last position comes no other: zeros.
        return padding.after_tokens(F.pad(hidden, (0, 0, 0, int(is_full))), model.has_start)

    def _is_full(self, ids: Tensor) -> bool:
        """Whether tokens (B, N) fill all positions, so that none is left for the start vector."""
        return self.model.has_start and ids.ndim == 2 and ids.shape[1] == self.model.longest

    def _continue(
        self, ids: Tensor, mask: Tensor | None, layer: StateLayer, positions: slice | Tensor
    ) -> Tensor:
        """The logits (B, kept, V) after tokens (B, N) that follow a state; 0 before the first."""
        model, state, length = self.model, self._own(layer.state), ids.shape[1]
        check_sequences(model.head, ids, 1, None)
        padding = Padding.of(None if mask is None else mask[:, -length:], ids)
        after = state.cursor.after(length, padding.lengths)
        check_end(after.furthest, model.longest)
        if state.max_length is not None and after.furthest > state.max_length:
            state = state.with_room(self._room(after.furthest))
        if length == 1 and padding.lengths is None:
            stepping: Any = layer.steps.choose(model, state.cursor.furthest) or model
            logits, state = stepping.step(ids[:, 0], state)
            logits = logits.unsqueeze(1)[:, positions]
        else:
            layer.steps = Steps()  # a prompt: compares all weights again
            vectors = model.positions(model._embed(padding.to_the_end(ids)), state.cursor.position)
            hidden, state = model.transformer.prefill(vectors, padding.lengths, state)
            hidden = padding.after_tokens(hidden, has_start=False)
            logits = model.output(hidden[:, positions])
        layer.state, layer.seen = state, layer.seen + length
        return cast(Tensor, logits)

    def _room(self, positions: int) -> int | None:
        """The positions of a cache: the model's; without a limit, the next power of 2."""
        model = self.model
        if model.longest is not None or not model.config.has_cache:
            return model.longest
        return max(model.max_length or 0, 1 << positions.bit_length())

    def _own(self, state: object) -> DecodingState:
        """The state; refuses one of a model with other sizes."""
        shape = self.config.transformer
        heads = shape.get("num_kv_heads") or shape["num_heads"]
        wanted = [(heads, shape["head_dim"])] * shape["num_layers"]
        if not isinstance(state, DecodingState) or _sizes(state) != wanted:
            got = _sizes(state) if isinstance(state, DecodingState) else "that of one layer"
            what = f"a state with heads and dims {wanted}"
            advice = "continue with the model that it comes from"
            raise ValueError(expected("cache", what, got, advice))
        return state


def _select_predicted(labels: Tensor, mask: Tensor | None) -> Tensor:
    """The labels (B, N), with -100 after a padded position, whose logits mean nothing."""
    if mask is None:
        return labels
    behind = mask[:, -labels.shape[1] :][:, :-1].to(labels.device) == 0
    return torch.cat([labels[:, :1], labels[:, 1:].masked_fill(behind, -100)], 1)


def _sizes(state: DecodingState) -> list[tuple[int, int]]:
    """The heads and the last dimension of each layer's state."""
    return [(layer[0].shape[1], layer[0].shape[-1]) for layer in state.layers]
