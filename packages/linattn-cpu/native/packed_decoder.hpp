// A model's weights, packed for one instruction set in memory of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calls.hpp"
#include "decoder.hpp"

namespace linattn {

// What is packed: weights in float32 where the caller keeps them.
struct DenseSource {
    MatrixSource weight;
    std::int64_t inputs, outputs;
    const float* bias;  // (outputs)
};
struct NormSource {
    const float *weight, *bias;  // (E)
    float eps;
};
struct LayerSource {
    DenseSource qkv, out, expand, contract;
    NormSource norm1, norm2;
};
struct TokenSource {
    std::vector<const float*> embeddings;  // (levels, E) for each channel
    const float* positions;                // (max_length, E)
    const float* start;                    // (E)
    DenseSource output;
    std::int64_t levels, max_length, choices;
    Head head;
    float lowest_log_scale;
};

// Everything but the weights.
struct DecoderShape {
    WeightFormat format;
    std::int64_t heads, head_dim, hidden;
    FeatureMap map;
    float eps;
    bool norm_first;
    Activation activation;
};

class PackedDecoder {
public:
    // Reads the sources and keeps nothing of them; `tokens` is null for a decoder of vectors.
    // Throws std::bad_alloc.
    PackedDecoder(const DecoderShape& shape, const std::vector<LayerSource>& layers,
                  const NormSource& norm, const TokenSource* tokens, int threads);

    // Throws std::invalid_argument for a token or position that the model does not have.
    void run(DecoderCall call) const;

    const char* instruction_set() const { return kernels_.instruction_set; }
    std::int64_t nbytes() const { return bytes_; }

private:
    struct Release {
        void operator()(void* memory) const;
    };
    class Shelf;

    void place(Shelf& shelf, const std::vector<LayerSource>& layers, const NormSource& norm,
               const TokenSource* tokens);
    void check(const DecoderCall& call) const;

    const Kernels& kernels_;
    DecoderModel model_{};
    std::vector<DecoderLayer> layers_;
    std::int64_t bytes_ = 0;
    std::unique_ptr<void, Release> memory_;
};

}  // namespace linattn
