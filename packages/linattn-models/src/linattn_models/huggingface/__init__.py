"""linattn in Hugging Face's transformers.

register                     attn_implementation="linattn" in models that dispatch by name
LinattnForCausalLM           an AutoregressiveTransformer as a transformers language model
LinattnConfig                its configuration
convert                      replaces softmax in a pretrained model by learned feature maps
transfer_attention           trains these maps, each layer against the softmax it replaces
load_converted               loads a converted model that save_pretrained wrote
from_transformers            a causal model of transformers as one of ours
ConvertedAttention           a converted attention layer
StateLayer                   the cache of a layer: a state whose size does not grow

All of it needs the extra `[transformers]`.
"""

from __future__ import annotations

from linattn_models.basics.optional import require_packages

require_packages("linattn_models.huggingface", "transformers")

from transformers import AutoConfig, AutoModelForCausalLM, __version__  # noqa: E402

from linattn_models.huggingface.version import check_version  # noqa: E402

check_version(__version__)

from linattn_models.huggingface.cache import StateLayer  # noqa: E402
from linattn_models.huggingface.configuration import LinattnConfig  # noqa: E402
from linattn_models.huggingface.conversion import convert, load_converted  # noqa: E402
from linattn_models.huggingface.converted import ConvertedAttention  # noqa: E402
from linattn_models.huggingface.interface import register  # noqa: E402
from linattn_models.huggingface.model import LinattnForCausalLM  # noqa: E402
from linattn_models.huggingface.transfer import transfer_attention  # noqa: E402
from linattn_models.huggingface.translation import from_transformers  # noqa: E402

AutoConfig.register(LinattnConfig.model_type, LinattnConfig, exist_ok=True)
AutoModelForCausalLM.register(LinattnConfig, LinattnForCausalLM, exist_ok=True)

__all__ = [
    "ConvertedAttention",
    "LinattnConfig",
    "LinattnForCausalLM",
    "StateLayer",
    "convert",
    "from_transformers",
    "load_converted",
    "register",
    "transfer_attention",
]
