"""A configuration is equal after writing and reading, and refuses what cannot be built."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_core import feature_map_names
from linattn_models import Linear, Lsh, Softmax, TransformerConfig
from linattn_models.attention import Attention, attention_config
from tests.models.tiny import tiny_config

counts = st.integers(1, 9)
attentions = st.one_of(
    st.builds(
        Linear,
        feature_map=st.sampled_from(feature_map_names()),
        eps=st.floats(0, 1),
        feature_map_options=st.dictionaries(st.text(), counts | st.floats(allow_nan=False)),
        decay=st.sampled_from([None, "fixed", "learned"]),
    ),
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
    activation=st.sampled_from(["gelu", "relu"]),
    norm=st.sampled_from(["pre", "post"]),
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
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(configs)
def test_embedding_is_all_heads_side_by_side(config: TransformerConfig) -> None:
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
    ("fields", "said"),
    [
        ({"num_layers": 0}, "num_layers: expected an integer of at least 1, got 0"),
        ({"num_heads": -2}, "num_heads: expected an integer of at least 1, got -2"),
        ({"head_dim": 2.0}, "head_dim: expected an integer of at least 1, got 2.0"),
        ({"ffn_dim": True}, "ffn_dim: expected an integer of at least 1, got True"),
        ({"attention": "liner"}, "did you mean 'linear'?"),
        ({"attention": "rnn"}, "got 'rnn'; known are 'linear', 'softmax', 'lsh', 'lsh-4'."),
        ({"attention": "lsh-x"}, "expected 'linear', 'softmax' or 'lsh-X' with X rounds"),
        ({"attention": "lsh-"}, "got 'lsh-'; did you mean"),
        ({"attention": "lhs-4"}, "did you mean 'lsh-4'"),
        ({"attention": "softmax-4"}, "did you mean 'softmax'"),
        ({"attention": "lsh-0"}, "rounds: expected an integer of at least 1, got 0."),
        ({"attention": 3}, "got 3; known are"),
        ({"attention": "x" * 500}, "got 'xxx"),
        ({"feature_map": "favors"}, "did you mean 'favor'?"),
        ({"feature_map_options": 3}, "feature_map_options: expected a mapping"),
        ({"feature_map_options": {"a": None}}, "got 'a': None"),
        ({"activation": "glu"}, "did you mean 'gelu'"),
        ({"norm": "batch"}, "known are 'pre', 'post'"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1, got 1.0"),
        ({"dropout": float("nan")}, "got nan"),
        ({"eps": -1e-6}, "eps: expected a number of at least 0, finite, got -1e-06"),
        ({"eps": "small"}, "got 'small'"),
        ({"is_causal": 1}, "is_causal: expected True or False, got 1"),
    ],
)
def test_refusals_name_field_and_value(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        tiny_config(**fields)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rounds": 0}, "rounds: expected an integer of at least 1, got 0."),
        ({"chunk": 0}, "chunk: expected an integer of at least 1, got 0."),
        ({"buckets": 63}, "buckets: expected 1 or an even number of buckets, got 63."),
    ],
)
def test_lsh_refuses_values_out_of_range(values: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Lsh(**values)


def test_unknown_and_missing_keys_are_named() -> None:
    values = tiny_config().to_dict()
    with pytest.raises(ValueError, match="got 'num_layer'; did you mean 'num_layers'"):
        TransformerConfig.from_dict({**values, "num_layer": 3})
    del values["ffn_dim"]
    with pytest.raises(ValueError, match="expected the keys 'ffn_dim', got the keys 'num_layers'"):
        TransformerConfig.from_dict(values)
    values = {**tiny_config().to_dict(), "attention": {"kind": "softmax", "eps": 1.0}}
    with pytest.raises(ValueError, match="a key of the configuration of attention 'softmax'"):
        TransformerConfig.from_dict(values)
    values["attention"] = {"eps": 1.0}
    with pytest.raises(ValueError, match="the kind of attention: expected a known name, got None"):
        TransformerConfig.from_dict(values)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "whole JSON"), ("[1]", "a JSON object, got a list")]
)
def test_text_that_is_no_configuration_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"expected {said}"):
        TransformerConfig.from_json(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads 2, got 3"),
        ({"num_kv_heads": True}, "expected a divisor of num_heads 2, got True"),
        ({"causal_block": 0}, "causal_block: expected an integer of at least 1, got 0"),
        ({"causal_block": 2, "is_causal": False}, "causal_block: expected is_causal=True"),
        ({"decay": "fixed", "is_causal": False}, "decay: expected is_causal=True and causal_bl"),
        ({"decay": "fixed", "causal_block": 2}, "got is_causal=True, causal_block=2"),
        ({"decay": "slow"}, "decay: expected a known name, got 'slow'"),
        ({"attention": "lsh-4", "causal_block": 2}, "LSH attention: expected neither groups"),
        ({"attention": "lsh-4", "num_kv_heads": 1}, "LSH attention: expected neither groups"),
    ],
)
def test_refuses_groups_blocks_and_decays_that_cannot_be_built(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        tiny_config(**fields)
