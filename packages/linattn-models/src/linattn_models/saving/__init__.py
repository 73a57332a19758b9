"""On disk: models in folders, decoders in files.

models     `save` and `load`: `config.json`, `model.safetensors`, and `tokenizer.json` for text
decoders   `export_decoder` and `load_decoder`: all that a decoder needs in one file
"""

from linattn_models.saving.decoders import export_decoder, load_decoder
from linattn_models.saving.models import Model, describe_model, load, read_config, save

__all__ = [
    "Model", "describe_model", "export_decoder", "load", "load_decoder", "read_config", "save",
]  # fmt: skip
