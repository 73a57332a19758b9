// A model's weights, copied and packed for one instruction set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "calls.hpp"
#include "decoder.hpp"
#include "memory.hpp"

namespace linattn {

// The source of packing: float32 weights in the caller's memory, or made while they are packed.
struct AffineSource {
    MatrixSource weight;
    std::int64_t inputs, outputs;
    const float* bias;                         // (outputs), or null
    std::function<std::vector<float>()> load;  // the memory of `weight`, where that has none
};
struct LayerSource {
    AffineSource qkv, out, expand, contract;
    std::optional<AffineSource> gate;
    const float *decay_logits = nullptr, *decay_weight = nullptr;  // (H_kv) and (H_kv, E), or null
    const float* log_gamma = nullptr;                              // (H), as in linattn_core.decoder_spec; or null
    const float *query_map = nullptr, *key_map = nullptr;          // (H, D, F / 2) and (H_kv, D, F / 2), or null
    NormWeights norm1, norm2;                                      // (E), not padded; the bias may be null
};
struct TokenSource : TokenShape {
    std::vector<const float*> embeddings;  // (levels, E) for each channel
    const float* positions;                // (max_length, E), or null
    const float* start;                    // (E), or null
    AffineSource output;
};
struct ModelSource : DecoderShape {
    std::vector<LayerSource> layers;
    std::vector<double> frequencies;  // (D / 2), of rotary positions, or empty
    NormWeights norm;
    std::optional<TokenSource> tokens;  // none for a decoder of vectors
};

class PackedDecoder {
public:
    // Copies the source; its memory is not needed afterwards. Throws std::bad_alloc.
    PackedDecoder(const ModelSource& source, int threads);

    // Throws std::invalid_argument for a token or position that the model does not have, and for several steps of a
    // call that is none of a single input and a draw.
    void run(DecoderCall call) const;

    // Draws the next tokens from the parameters in `call.outputs`, (B, P), as a step would.
    void draw(const DecoderCall& call) const { kernels_.draw(model_, call); }

    const char* instruction_set() const { return kernels_.instruction_set; }
    std::int64_t nbytes() const { return bytes_; }

private:
    class Packer;

    void place(Packer& packer, const ModelSource& source);
    void check(const DecoderCall& call) const;
    void take_drawn(DecoderCall& call, std::vector<std::int64_t>& positions) const;

    const Kernels& kernels_;
    DecoderModel model_{};
    std::vector<DecoderLayer> layers_;
    std::int64_t bytes_ = 0;
    std::optional<Scratch> memory_;
};

}  // namespace linattn
