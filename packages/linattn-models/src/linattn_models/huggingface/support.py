"""Which models of transformers look their attention function up by name."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

from transformers import PreTrainedConfig, PreTrainedModel

from linattn_core.errors import expected
from linattn_core.torch_private import constant_in_graphs

# Configurations with a model of their own that dispatches. Classes that are defined later do not
# change that. A search through all classes takes longer than a small layer.
_dispatching: WeakSet[type[PreTrainedConfig]] = WeakSet()


# Its result is a constant of a traced graph, like the class that it depends on.
@constant_in_graphs
def dispatches_by_name(config_class: type[PreTrainedConfig]) -> bool:
    """Whether the models of a configuration declare that they dispatch attention by name.

    Other models ignore the name, wholly or in part: Bloom takes its mask from the named attention
    and computes softmax with it. A configuration without models counts as declared.
    """
    if config_class in _dispatching:
        return True
    for ancestor in config_class.__mro__:
        models = [model for model in _models() if model.config_class is ancestor]
        if models:
            found = any(model._supports_attention_backend for model in models)
            if found and ancestor is config_class:
                _dispatching.add(config_class)
            return found
    return True


def check_dispatches(config: PreTrainedConfig) -> None:
    """Refuses a model that does not dispatch attention by name."""
    if not dispatches_by_name(type(config)):
        wanted = "a model that dispatches attention by name"
        got = f"one with a {type(config).__name__}"
        advice = "keep the attention that it comes with"
        raise ValueError(expected("attn_implementation", wanted, got, advice))


def _models(base: type[PreTrainedModel] = PreTrainedModel) -> Iterator[type[PreTrainedModel]]:
    """All imported classes of models."""
    for model in base.__subclasses__():
        yield model
        yield from _models(model)
