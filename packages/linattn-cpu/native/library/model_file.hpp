// The model in a file that linattn_models.export_decoder wrote, checked, as the source of packing.
//
// Tensors have the names of linattn_core.decoder_spec: layers.0.qkv.weight (outputs, inputs), tokens.embeddings.0, ...
// Matrices are float32, bfloat16, or int8 beside ".largest", the largest weight of each output.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "library/tensor_file.hpp"
#include "packed_decoder.hpp"

namespace linattn {

struct ModelFile {
    explicit ModelFile(const void* bytes, std::int64_t size);

    TensorFile content;
    ModelSource source;  // reads `content`
    bool has_start = false;

private:
    std::string text(const std::string& name) const;
    std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high) const;
    double number(const std::string& name, double low) const;
    int one_of(const std::string& name, const std::vector<std::string>& known) const;
    const FileTensor& tensor(const std::string& name, const Shape& shape) const;
    const float* floats(const std::string& name, const Shape& shape) const;
    const float* optional(const std::string& name, const Shape& shape) const;
    AffineSource affine(const std::string& name, std::int64_t inputs, std::int64_t outputs) const;
    NormWeights norm(const std::string& name) const;
    void read_frequencies();
    LayerSource layer(const std::string& name);
    TokenSource tokens();
    void check_names() const;

    mutable std::set<std::string> used_;
    bool learns_map_ = false;
};

}  // namespace linattn
