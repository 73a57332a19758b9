// The arguments of the kernels: addresses, sizes and strides, without types of a framework.
#pragma once

#include <cstdint>

namespace linattn {

// The dtypes of tensors, with torch's names.
enum class Dtype : int { float64 = 0, float32 = 1, bfloat16 = 2, float16 = 3 };

static constexpr int bytes_of(Dtype dtype) { return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2; }

// The feature maps that the kernels apply.
enum class FeatureMap : int { identity = 0, relu = 1, elu = 2 };

// A tensor (batch, heads, length, dim) with strides in elements.
struct Tensor4 {
    void* data;
    std::int64_t batch, head, position, dim;
};

// S (sequences, H_kv, D, M) and z (sequences, H_kv, D), contiguous, in the accumulation dtype;
// null where there is no state.
struct State {
    void* s;
    void* z;
};

// One call of linear_attention. Queries, keys, values and the gradient of the output have any
// strides; everything that is written is contiguous.
struct Attention {
    Tensor4 query, key, value;  // (B, H, N, D), (B, H_kv, L, D), (B, H_kv, L, M)
    std::int64_t batch, heads, queries, keys, dim, value_dim;
    std::int64_t kv_heads;            // H_kv: query head h reads key/value head h / (H / H_kv)
    const std::int64_t* key_lengths;  // (B), or null
    const std::uint8_t* mask;         // (B, L), contiguous, 0 where a key does not exist, or null
    const std::int64_t* cu_seqlens;   // (sequences + 1), or null: then there are `batch` sequences
    const void* log_decay;            // (B, H_kv, L), contiguous, accumulation dtype, at most 0, or null; causal only
    std::int64_t sequences;
    Dtype query_dtype, value_dtype;  // of query and key; of value, output and their gradients
    FeatureMap map;
    double eps;
    bool causal;
    bool normalize;  // false: the output is phi(q)^T S
    int threads;
};

struct AttentionForward : Attention {
    State initial;     // causal: the initial state; otherwise what the sums are added to
    State last;        // causal: the final state, after the last key; otherwise the sums over all keys
    void* out;         // (B, H, N, M), value_dtype
    void* normalizer;  // (B, H, N), accumulation dtype
};

struct AttentionBackward : Attention {
    Tensor4 grad_out;             // (B, H, N, M), value_dtype
    const void* grad_normalizer;  // (B, H, N), contiguous, accumulation dtype, or null
    State grad_last;              // the upstream gradient of `last`
    State state;                  // causal: `initial`; otherwise the sums over the keys
    const void* out;              // as the forward pass wrote them
    const void* normalizer;
    // The gradients, null for each that is not wanted.
    void* grad_query;  // (B, H, N, D), query_dtype
    void* grad_key;    // (B, H_kv, L, D), query_dtype
    void* grad_value;  // (B, H_kv, L, M), value_dtype
    State grad_initial;
    void* grad_log_decay;  // (B, H_kv, L), accumulation dtype
    void* scratch;         // (B, H, N), accumulation dtype: the kernels keep h there, the normalizer's gradient
};

// One decoding step: s += phi(k) v^T, z += phi(k), out = phi(q)^T s / (phi(q)^T z + eps), once s and z are multiplied
// by exp(log_decay). The tensors have no length: their `position` stride means nothing. The state has any strides.
struct Step {
    Tensor4 query, key, value;  // (B, H, D), (B, H_kv, D), (B, H_kv, M)
    Tensor4 s, z;               // s: `position` is the stride of D and `dim` that of M
    void* out;                  // (B, H, M), contiguous, value_dtype
    const void* log_decay;      // (B, H_kv), accumulation dtype, or null
    // (B), the slot of s and z for each row, -1 for an empty row, whose output is 0; null: row b works on slot b.
    const std::int64_t* state_indices;
    std::int64_t batch, heads, kv_heads, dim, value_dim;
    Dtype query_dtype, value_dtype;
    FeatureMap map;
    double eps;
    bool normalize;  // false: out = phi(q)^T s
    int threads;
};

// Query heads that read one key/value head.
template <class Call>
constexpr std::int64_t groups_of(const Call& call) {
    return call.kv_heads == 0 ? 1 : call.heads / call.kv_heads;
}

// Of the compiled decoder; see decoder.hpp.
enum class WeightFormat : int;
struct MatrixSource;
struct PackedMatrix;
struct DecoderModel;
struct DecoderCall;

// The kernels of one instruction set.
struct Kernels {
    const char* instruction_set;
    void (*attention_forward)(const AttentionForward& call);
    void (*attention_backward)(const AttentionBackward& call);
    void (*step)(const Step& call);
    int panel_width;  // how many outputs of packed weights are computed together
    std::int64_t (*packed_bytes)(WeightFormat format, std::int64_t inputs, std::int64_t outputs);
    std::int64_t (*packed_sums)(std::int64_t inputs, std::int64_t outputs);
    void (*pack_matrix)(const MatrixSource& source, WeightFormat format, const PackedMatrix& matrix, int threads);
    std::int64_t (*workspace_bytes)(const DecoderModel& model, const DecoderCall& call);
    void (*decode)(const DecoderModel& model, const DecoderCall& call, void* workspace);
    void (*draw)(const DecoderModel& model, const DecoderCall& call);
    // Measures the machine's peak: `steps` steps of a loop in registers on each thread; returns the operations.
    std::int64_t (*fused_multiply_adds)(int threads, std::int64_t steps);
};

}  // namespace linattn
