// A compiled decoder as the kernels see it: weights packed once, and one call for any number of
// positions. E is the width of the embedding, F that of the feed-forward network, H heads of D.
#pragma once

#include <cstdint>

#include "calls.hpp"

namespace linattn {

// How weights lie in memory; the values are Python's.
enum class WeightFormat : int { float32 = 0, bfloat16 = 1, int8 = 2 };

enum class Activation : int { relu = 0, gelu = 1 };

// The distributions that tokens are drawn from inside; `none` leaves that to the caller.
enum class Head : int { none = 0, categorical = 1, mixture_of_logistics = 2 };

// A matrix (inputs, outputs) of float32 with strides in elements.
struct MatrixSource {
    const float* data;
    std::int64_t input_stride, output_stride;
};

// W of y = x W + b in panels of `Kernels::panel_width` outputs; within a panel, inputs stand in
// groups of as many as fill 32 bits: [panel][group of inputs][output][input of the group].
// What lies past the last output or input is 0.
struct PackedMatrix {
    std::int64_t inputs, outputs;
    void* panels;
    float* bias;         // one for each output of the panels
    float* scales;       // int8 only: what 1 stands for, for each output
    std::int32_t* sums;  // int8 only: the sum of each output's integers
};

struct NormWeights {
    const float* weight;  // padded to whole panels by 0, as is the bias
    const float* bias;
    float eps;
};

struct DecoderLayer {
    PackedMatrix qkv, out, expand, contract;
    NormWeights norm1, norm2;
};

// How tokens become vectors and vectors parameters; a decoder of vectors has no channels.
struct TokenWeights {
    std::int64_t channels, levels, max_length;
    const float* embeddings[3];  // (levels, E) each
    const float* positions;      // (max_length, E)
    const float* start;          // (E)
    PackedMatrix output;
    Head head;
    std::int64_t choices;    // logits that the head draws from
    float lowest_log_scale;  // of a mixture of logistics
};

struct DecoderModel {
    WeightFormat format;
    std::int64_t num_layers, heads, head_dim, embed, hidden;
    FeatureMap map;
    float eps;
    bool norm_first;
    Activation activation;
    const DecoderLayer* layers;
    NormWeights norm;
    TokenWeights tokens;
};

// Inputs that each row takes one after the other, from the state that it is given. Everything is
// contiguous. Row b takes lengths[b] inputs, the first of them at position first[b].
struct DecoderCall {
    std::int64_t batch, inputs;   // B, and the most inputs of a row
    const std::int64_t* lengths;  // (B), or null where all take `inputs`
    const std::int64_t* first;    // (B), or null where all begin at `position`
    std::int64_t position;
    bool begins;                 // the start vector comes before the tokens
    const std::int64_t* tokens;  // (B, inputs - begins, channels), or null
    const float* vectors;        // (B, inputs, E), or null
    float* const* s;             // for each layer (B, H, D, D), updated in place
    float* const* z;             // for each layer (B, H, D), updated in place
    float* outputs;              // (B, P) after each row's last input; of vectors (B, inputs, E)
    const float* waits;          // (B, choices) of the exponential distribution; null: the likeliest
    const float* uniform;        // (B, channels) for a mixture of logistics, or null as `waits`
    float temperature;
    std::int64_t* drawn;  // (B, channels), or null to draw nothing
    int threads;
};

}  // namespace linattn
