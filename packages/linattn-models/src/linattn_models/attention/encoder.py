"""Linear attention where PyTorch's own modules call `torch.nn.MultiheadAttention`."""

from __future__ import annotations

from typing import Any, NoReturn, Self, TypeVar, cast

from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.attention.layer import LinearAttention
from linattn_models.basics.validation import boolean, instance

Module = TypeVar("Module", bound=nn.Module)


class EncoderAttention(nn.Module):
    """A `LinearAttention` that is called as `torch.nn.MultiheadAttention` is.

    It takes the place of `self_attn` in `nn.TransformerEncoderLayer`, and of the attention of other
    modules that pass `need_weights=False`. `replace_in` puts it into a whole model.

    Args:
        embed_dim, num_heads: E and H.
        batch_first: whether tensors are (B, N, E), or (N, B, E).
        **options: of the `LinearAttention`.

    Attributes:
        attention: the `LinearAttention`.
    """

    # With a bias, nn.TransformerEncoderLayer would compute softmax itself in evaluation mode.
    in_proj_bias: None = None

    def __init__(
        self, embed_dim: int, num_heads: int, *, batch_first: bool = True, **options: Any
    ) -> None:
        super().__init__()
        boolean("batch_first", batch_first)
        self.batch_first = batch_first
        self.attention = LinearAttention(embed_dim, num_heads, **options)

    @classmethod
    def from_softmax(cls, softmax: nn.MultiheadAttention, **options: Any) -> Self:
        """The layer with the same parameters, which an optimizer that has them goes on training.

        It computes another function of them; `docs/your-model.md` says how to train it further.

        Raises:
            ValueError: an attention with `kdim`, `vdim`, `add_bias_kv` or `add_zero_attn`, or
                options that need projections of other sizes.
        """
        instance("softmax", softmax, nn.MultiheadAttention)
        weight, bias = softmax.in_proj_weight, softmax.in_proj_bias
        if weight is None or softmax.bias_k is not None or softmax.add_zero_attn:
            wanted = "none of kdim, vdim, add_bias_kv and add_zero_attn"
            raise ValueError(expected("softmax", wanted, "one", "build an EncoderAttention"))
        options = {"bias": bias is not None, "batch_first": softmax.batch_first} | options
        layer = cls(softmax.embed_dim, softmax.num_heads, **options).to(weight)
        new, old = layer.attention, softmax.out_proj
        sizes = (new.qkv.weight.shape, new.out.weight.shape)
        if sizes != (weight.shape, old.weight.shape) or (new.qkv.bias is None) != (bias is None):
            advice = "leave out num_kv_heads, head_dim and bias, or build an EncoderAttention"
            raise ValueError(expected("options", "the projections of softmax", options, advice))
        new.qkv.weight, new.out.weight = weight, old.weight
        new.qkv.bias, new.out.bias = bias, old.bias
        return layer.train(softmax.training)

    @classmethod
    def replace_in(cls, module: Module, **options: Any) -> Module:
        """Replaces each `nn.MultiheadAttention` in `module` by `from_softmax`; returns `module`.

        Nested tensors, for which `nn.TransformerEncoder` would read the weights of its first layer,
        are switched off.

        Raises:
            ValueError: no `nn.MultiheadAttention` in `module`, or one that `from_softmax` refuses.
        """
        instance("module", module, nn.Module)
        places = [
            (parent, name, cls.from_softmax(child, **options))
            for parent in module.modules()
            for name, child in parent.named_children()
            if type(child) is nn.MultiheadAttention
        ]
        if not places:
            wanted, got = "a module with layers of nn.MultiheadAttention", type(module).__name__
            raise ValueError(expected("module", wanted, f"a {got} without one"))
        for parent, name, layer in places:
            setattr(parent, name, layer)
        for encoder in module.modules():
            if isinstance(encoder, nn.TransformerEncoder):
                encoder.use_nested_tensor = False
        return module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """The output as `query` is laid out, and None in place of weights.

        Args:
            query, key, value: (B, N, E) and (B, L, E), or with the first two dimensions exchanged
                without `batch_first`; or one sequence, (N, E) and (L, E).
            key_padding_mask: (B, L) bool, True hides a key, on any side; or float, 0 for keys that
                take part and -inf for others.
            need_weights: False alone, since weights are never formed.
            attn_mask: a causal mask, which is not read, beside `is_causal`; else None.
            average_attn_weights: not used.
            is_causal: query i sees keys 0 to i.

        Raises:
            ValueError: another mask, or weights that are asked for.
        """
        if need_weights:
            wanted, advice = "False", "linear attention never forms weights"
            raise ValueError(expected("need_weights", wanted, need_weights, advice))
        if attn_mask is not None and not is_causal:
            wanted, advice = "None, or a causal mask and is_causal=True", "hide keys of padding"
            got = f"a mask of shape {tuple(attn_mask.shape)} and is_causal=False"
            raise ValueError(expected("attn_mask", wanted, got, f"{advice} by key_padding_mask"))
        visible = None if key_padding_mask is None else key_padding_mask == 0
        single = query.ndim == 2
        if single:
            visible = None if visible is None else visible.unsqueeze(0)
        inputs = (self._batch_first(x, single) for x in _distinct(query, key, value))
        out = cast(Tensor, self.attention(*inputs, is_causal=is_causal, attn_mask=visible))
        if single:
            return out.squeeze(0), None
        return (out if self.batch_first else out.transpose(0, 1)), None

    @property
    def in_proj_weight(self) -> NoReturn:
        """Read by an `nn.TransformerEncoder` that would make nested tensors, which is refused."""
        what, advice = "use_nested_tensor of the encoder", "or call EncoderAttention.replace_in"
        raise ValueError(
            expected(what, "False beside linear attention", "True", f"set it, {advice}")
        )

    def _batch_first(self, x: Tensor, single: bool) -> Tensor:
        if single:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)


def _distinct(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """The query alone in self-attention, which one product then projects."""
    if key is query and value is query:
        return (query,)
    return (query, key) if value is key else (query, key, value)
