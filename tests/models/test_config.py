"""A configuration is a value: it survives writing and reading, and refuses what cannot be built."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_core import feature_map_names
from linattn_models import TransformerConfig
from tests.models.tiny import tiny_config

counts = st.integers(1, 9)
configs = st.builds(
    TransformerConfig,
    num_layers=counts,
    num_heads=counts,
    head_dim=counts,
    ffn_dim=counts,
    attention=st.sampled_from(["linear", "softmax"]),
    is_causal=st.booleans(),
    feature_map=st.sampled_from(feature_map_names()),
    feature_map_options=st.dictionaries(st.text(), counts | st.floats(allow_nan=False)),
    activation=st.sampled_from(["gelu", "relu"]),
    norm=st.sampled_from(["pre", "post"]),
    dropout=st.floats(0, 1, exclude_max=True),
    eps=st.floats(0, 1),
)


@given(configs)
def test_round_trips(config: TransformerConfig) -> None:
    assert TransformerConfig.from_dict(config.to_dict()) == config
    assert TransformerConfig.from_json(config.to_json()) == config
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(configs)
def test_embedding_is_all_heads_side_by_side(config: TransformerConfig) -> None:
    assert config.embed_dim == config.num_heads * config.head_dim


def test_options_compare_whatever_their_order_and_container() -> None:
    one = tiny_config(feature_map_options={"a": 1, "b": 2})
    other = tiny_config(feature_map_options=[("b", 2), ("a", 1)])
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_layers": 0}, "num_layers must be an integer of at least 1 and is 0"),
        ({"num_heads": -2}, "num_heads must be an integer of at least 1 and is -2"),
        ({"head_dim": 2.0}, "head_dim must be an integer of at least 1 and is 2.0"),
        ({"ffn_dim": True}, "ffn_dim must be an integer of at least 1 and is True"),
        ({"attention": "liner"}, "did you mean 'linear'?"),
        ({"attention": "rnn"}, "attention 'rnn' is unknown; known are 'linear', 'softmax', 'lsh'"),
        ({"lsh_rounds": 0}, "lsh_rounds must be an integer of at least 1 and is 0"),
        ({"lsh_chunk": 0}, "lsh_chunk must be an integer of at least 1 and is 0"),
        ({"lsh_buckets": 63}, "lsh_buckets must be 1 or an even number"),
        ({"feature_map": "favor"}, "did you mean 'favor'?"),
        ({"feature_map_options": 3}, "feature_map_options must be a mapping"),
        ({"feature_map_options": {"a": None}}, "has 'a': None"),
        ({"activation": "glu"}, "did you mean 'gelu'"),
        ({"norm": "batch"}, "known are 'pre', 'post'"),
        ({"dropout": 1.0}, "dropout must be a number at least 0 and below 1 and is 1.0"),
        ({"dropout": float("nan")}, "is nan"),
        ({"eps": -1e-6}, "eps must be a number at least 0 and is -1e-06"),
        ({"eps": "small"}, "is 'small'"),
        ({"is_causal": 1}, "is_causal must be true or false and is 1"),
    ],
)
def test_refusals_name_field_and_value(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        tiny_config(**fields)
    assert "\n" not in str(refusal.value)


def test_unknown_and_missing_keys_are_named() -> None:
    values = tiny_config().to_dict()
    with pytest.raises(ValueError, match="'num_layer' is unknown; did you mean 'num_layers'"):
        TransformerConfig.from_dict({**values, "num_layer": 3})
    del values["ffn_dim"]
    with pytest.raises(ValueError, match=r"lacks the key.*'ffn_dim'"):
        TransformerConfig.from_dict(values)


@pytest.mark.parametrize(("text", "said"), [("{", "must be JSON"), ("[1]", "must be a mapping")])
def test_text_that_is_no_configuration_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransformerConfig.from_json(text)
