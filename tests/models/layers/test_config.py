"""A configuration is equal after writing and reading, and refuses what cannot be built."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_core import feature_map_names
from linattn_models import Linear, Lsh, Softmax, TransformerConfig
from linattn_models.attention import Attention, attention_config
from linattn_models.attention.rotary import Llama3Scaling
from tests.models.tiny import tiny_config

SCALING = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_length": 8192,
}  # fmt: skip
counts = st.integers(1, 9)
attentions = st.one_of(
    st.builds(
        Linear,
        feature_map=st.sampled_from(feature_map_names()),
        eps=st.floats(0, 1),
        feature_map_options=st.dictionaries(st.text(), counts | st.floats(allow_nan=False)),
        decay=st.sampled_from([None, "fixed", "learned", "gated"]),
    ),
    st.builds(Linear, decay=st.just("learned"), decay_range=st.just((0.5, 0.9))),
    st.builds(Softmax),
    st.builds(Lsh, rounds=counts, buckets=counts.map(lambda half: 2 * half), chunk=counts),
)
plain_configs = st.builds(
    TransformerConfig,
    num_layers=counts,
    num_heads=counts,
    head_dim=counts,
    ffn_dim=counts,
    attention=attentions,
    is_causal=st.just(True),
    ffn=st.sampled_from(["gelu", "gelu_tanh", "relu", "swiglu"]),
    norm=st.sampled_from(["layer", "rms"]),
    bias=st.booleans(),
    qkv_bias=st.none() | st.booleans(),
    norm_eps=st.none() | st.floats(0, 1),
    rotary_base=st.floats(1, 1e6),
    rotary_scaling=st.none() | st.just(Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    tie_embeddings=st.booleans(),
    norm_first=st.booleans(),
    dropout=st.floats(0, 1, exclude_max=True),
)
grouped_configs = st.builds(
    TransformerConfig,
    num_layers=counts,
    num_heads=st.just(12),
    head_dim=counts,
    ffn_dim=counts,
    attention=st.sampled_from(["linear", "softmax"]),
    num_kv_heads=st.sampled_from([None, 1, 2, 3, 4, 6, 12]),
    causal_block=counts,
)
configs = plain_configs | grouped_configs


@given(configs)
def test_round_trips(config: TransformerConfig) -> None:
    assert TransformerConfig.from_dict(config.to_dict()) == config
    assert TransformerConfig.from_json(config.to_json()) == config
    assert config.embed_dim == config.num_heads * config.head_dim


@pytest.mark.parametrize(
    ("short", "attention"),
    [
        ("linear", Linear()),
        ("softmax", Softmax()),
        ("lsh", Lsh()),
        ("lsh-1", Lsh(rounds=1)),
        ("lsh-12", Lsh(rounds=12)),
    ],
)
def test_short_forms_stand_for_attentions(short: str, attention: Attention) -> None:
    config = TransformerConfig(1, 2, 4, 8, attention=short)
    assert config.attention == attention == attention_config(attention)
    assert str(config.attention) == {"lsh": "lsh-4"}.get(short, short)
    assert config == TransformerConfig(1, 2, 4, 8).with_attention(short)
    assert TransformerConfig.from_dict({**config.to_dict(), "attention": short}) == config


def test_options_compare_whatever_their_order_and_container() -> None:
    one = tiny_config(feature_map_options={"a": 1, "b": 2})
    other = tiny_config(feature_map_options=[("b", 2), ("a", 1)])
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"head_dim": 2.0}, "head_dim"),
        ({"ffn_dim": True}, "ffn_dim"),
        ({"attention": "liner"}, "'linear'"),
        ({"attention": "lsh-x"}, "lsh-x"),
        ({"attention": "lhs-4"}, "'lsh-4'"),
        ({"attention": "softmax-4"}, "'softmax'"),
        ({"attention": "lsh-0"}, "rounds"),
        ({"attention": 3}, "attention"),
        ({"attention": "x" * 500}, "attention"),
        ({"feature_map": "favors"}, "feature_map"),
        ({"feature_map_options": 3}, "feature_map_options"),
        ({"feature_map_options": {"a": None}}, "feature_map_options"),
        ({"ffn": "glu"}, "ffn"),
        ({"norm": "batch"}, "norm"),
        ({"norm_first": "pre"}, "norm_first"),
        ({"bias": 1}, "bias"),
        ({"qkv_bias": 0}, "qkv_bias"),
        ({"norm_eps": -1.0}, "norm_eps"),
        ({"rotary_base": 0.5}, "rotary_base"),
        ({"rotary_scaling": {"factor": 8.0}}, "rotary_scaling"),
        ({"rotary_scaling": SCALING | {"low_freq_factor": 9.0}}, "high_freq_factor"),
        ({"rotary": True, "head_dim": 3}, "rotary"),
        ({"rotary": True, "attention": "lsh-4"}, "rotary"),
        ({"tie_embeddings": None}, "tie_embeddings"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"eps": -1e-6}, "eps"),
        ({"is_causal": 1}, "is_causal"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"causal_block": 0}, "causal_block"),
        ({"causal_block": 2, "is_causal": False}, "causal_block"),
        ({"decay": "fixed", "is_causal": False}, "decay"),
        ({"decay_range": (0.5, 0.9)}, "decay_range"),
        ({"decay_range": (0.9, 0.5), "decay": "learned"}, "decay_range"),
        ({"decay": "slow"}, "decay"),
        ({"window_size": -1}, "window_size"),
        ({"decay_range": (0.5, 0.9), "decay": "gated"}, "decay_range"),
        ({"window_size": 4, "is_causal": False}, "window_size"),
        ({"attention": "lsh-4", "causal_block": 2}, "causal_block"),
        ({"attention": "lsh-4", "num_kv_heads": 1}, "num_kv_heads"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        tiny_config(**fields)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


@pytest.mark.parametrize("values", [{"rounds": 0}, {"chunk": 0}, {"buckets": 63}])
def test_lsh_refuses_values_out_of_range(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        Lsh(**values)


def test_unknown_and_missing_keys_are_named() -> None:
    values = tiny_config().to_dict()
    with pytest.raises(ValueError, match="'num_layer'"):
        TransformerConfig.from_dict({**values, "num_layer": 3})
    for attention, name in (({"kind": "softmax", "eps": 1.0}, "eps"), ({"eps": 1.0}, "kind")):
        with pytest.raises(ValueError, match=name):
            TransformerConfig.from_dict({**values, "attention": attention})
    del values["ffn_dim"]
    with pytest.raises(ValueError, match="ffn_dim"):
        TransformerConfig.from_dict(values)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the transformer configuration"):
        TransformerConfig.from_json(text)
