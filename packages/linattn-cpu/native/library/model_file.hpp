// The model in a file that linattn_models.export_decoder wrote.
//
// Tensors have the names of linattn_core.decoder_spec: layers.0.qkv.weight (outputs, inputs), tokens.embeddings.0, ...
// Matrices are float32, bfloat16, or int8 beside ".largest", the largest weight of each output.
#pragma once

#include "library/tensor_file.hpp"
#include "packed_decoder.hpp"

namespace linattn {

// The source of packing, checked; it reads the file's tensors.
ModelSource read_model(const TensorFile& file);

}  // namespace linattn
