// A compiled decoder for the kernels: weights packed once, and one call for any number of positions.
// Letters: E width of the embedding, H heads, D head dim, F features of a head.
#pragma once

#include <cstdint>

#include "calls.hpp"

namespace linattn {

// The formats of packed weights.
enum class WeightFormat : int { float32, bfloat16, int8 };

enum class Activation : int { relu, gelu, gelu_tanh, silu };

// The heads from which the decoder can draw tokens; `none`: the caller draws.
enum class Head : int { none, categorical, mixture_of_logistics };

// A matrix (inputs, outputs) of float32 with strides in elements.
struct MatrixSource {
    const float* data;
    std::int64_t input_stride, output_stride;
};

// W of y = x W + b in panels of `Kernels::panel_width` outputs. Within a panel, inputs are in groups that
// fill 32 bits: [panel][group of inputs][output][input of the group]; the order of inputs in a group depends
// on the instruction set. Places past the last output or input are 0.
struct PackedMatrix {
    std::int64_t inputs, outputs;
    void* panels;
    float* bias;    // one for each output of the panels
    float* scales;  // int8 only: for each output, the weight that the integer 1 represents
    // int8 with AVX512-VNNI only: for each output, the sum of the integers of all inputs before i, for i = 0, panel_width,
    // 2 panel_width, ..., and of all inputs: [inputs / panel_width, rounded up, + 1][outputs, padded].
    std::int32_t* sums;
};

struct NormWeights {
    const float* weight;  // padded with 0 to whole panels, as is the bias
    const float* bias;
    float eps;
    bool centered;  // LayerNorm; false: RMSNorm, which subtracts no mean
};

struct DecoderLayer {
    PackedMatrix qkv, out, expand, contract;
    PackedMatrix gate;          // of DecoderShape::gated
    const float* decay;         // (H_kv), the factor of each head's state before a position is added; null: 1
    const float* decay_weight;  // (H_kv, E), or null; else the factor is sigmoid(decay + decay_weight x), x read by qkv
    const float* log_gamma;     // (H), with a window: added to the logarithm of linear attention's weight
    // Of a learned map: phi(x) = [softmax(x W), softmax(-x W)], with W (D, F / 2) of each head of queries (H) and keys
    // (H_kv); null for the map of DecoderShape, of each number alone.
    const float *query_map, *key_map;
    NormWeights norm1, norm2;
};

struct TokenShape {
    std::int64_t levels, max_length;
    Head head;
    std::int64_t choices;    // the number of logits that the head draws from
    float lowest_log_scale;  // of a mixture of logistics: log-scales are clamped to this minimum
};

// How tokens become vectors, and vectors parameters; a decoder of vectors has 0 channels.
struct TokenWeights : TokenShape {
    std::int64_t channels;
    const float* embeddings[3];  // (levels, E) each
    const float* positions;      // (max_length, E), or null: any position, without a vector of its own
    const float* start;          // (E)
    PackedMatrix output;
};

// Everything but the weights.
struct DecoderShape {
    WeightFormat format;
    std::int64_t heads, kv_heads, head_dim, hidden;  // each key/value head is read by heads / kv_heads query heads
    std::int64_t features;                           // F of each head; D unless the map is learned
    FeatureMap map;
    float eps;
    bool norm_first;
    Activation activation;
    bool gated;           // contract(activation(gate(x)) * expand(x)) in place of contract(activation(expand(x)))
    std::int64_t window;  // softmax for so many last keys, and linear attention for those before; 0: for all
};

struct DecoderModel : DecoderShape {
    std::int64_t num_layers, embed;
    const DecoderLayer* layers;
    const double* frequencies;  // (D / 2), by which each pair of a head turns a position (rotary positions), or null
    NormWeights norm;
    TokenWeights tokens;
};

// One or more inputs for each row, read in order from its state. All tensors are contiguous. Row b has lengths[b]
// inputs, the first of them at position positions[b]. Rows with positions are those of a batch: with float32 weights, each
// one's numbers are the same bits alone and beside others, for any number of threads.
//
// A call with more than one step has one input for each row and draws. The tokens that a step draws are the inputs of
// the next one; quantiles, outputs and drawn then have a first dimension of `steps`.
struct DecoderCall {
    std::int64_t batch, inputs;     // B, and the most inputs of a row
    const std::int64_t* lengths;    // (B), or null if all rows have `inputs`
    const std::int64_t* positions;  // (B), or null if all rows start at `position`
    std::int64_t position;
    bool begins;                 // whether the start vector comes before the tokens
    const std::int64_t* tokens;  // (B, inputs - begins, channels), or null
    const float* vectors;        // (B, inputs, E), or null
    float* const* s;             // for each layer (B, H_kv, F, D), updated in place
    float* const* z;             // for each layer (B, H_kv, F), updated in place
    // With a window, for each layer (B, H_kv, window, D), updated in place. With a decay_weight, each key is followed by the
    // logarithm of its position's factor.
    float *const *keys, *const *values;
    float* outputs;  // (B, P) after each row's last input; of vectors (B, inputs, E)
    // How each row draws, as in linattn_core.decoder_spec.Draw: four uniform random numbers, (B, 4), at which distribution
    // functions are inverted, and settings, (B); 0 switches a filter off. Null to draw nothing.
    const double* quantiles;
    const double *temperatures, *top_ps, *min_ps;
    const std::int64_t* top_ks;
    std::int64_t* drawn;  // (B, channels), or null to draw nothing
    std::int64_t steps = 1;
    int threads;
};

}  // namespace linattn
