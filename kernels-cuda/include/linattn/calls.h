// What a caller hands to the kernels: addresses on the device, sizes and strides, a stream. No framework's types, and
// no other header: device code and host code both read it.
#pragma once

namespace linattn {

using Int = long long;  // sizes and strides: 64 bits wherever a tensor may pass 2^31 elements

// Numbers as they lie in memory, by the names that torch gives them. float64 has no kernels here.
enum class Dtype : int { float32 = 1, bfloat16 = 2, float16 = 3 };

// The feature maps that are applied inside.
enum class FeatureMap : int { identity = 0, relu = 1, elu = 2 };

// How the products of float32 numbers are computed. See numbers.cuh.
enum class Precision : int {
    highest = 0,  // three bfloat16 parts a number, six products: float32 accuracy
    high = 1,     // two parts, three products: 16 bits of each number, better than TF32's 11
};

// A tensor (batch, heads, length, dim) with strides in elements.
struct Tensor4 {
    void* data;
    Int batch, head, position, dim;
};

// S (sequences, H_kv, D, M) and z (sequences, H_kv, D), contiguous float32; null where there is no state.
struct State {
    float* s;
    float* z;
};

// One call of linear_attention. Queries, keys, values and the gradient of the output have any strides; everything
// that is written is contiguous. All memory is on the device. H is a multiple of H_kv, and a group of H / H_kv
// neighboring query heads reads one head of keys, values and states.
struct Attention {
    Tensor4 query, key, value;          // (B, H, N, D), (B, H_kv, L, D), (B, H_kv, L, M)
    Int batch, heads, kv_heads;         // B, H, H_kv
    Int queries, keys, dim, value_dim;  // N, L, D, M; N and L below 2^31
    const Int* key_lengths;             // (B), or null
    const unsigned char* mask;          // (B, L), contiguous: keys where it is 0 do not exist; or null: all do
    const Int* cu_seqlens;              // (sequences + 1), or null: then there are `batch` sequences
    Int sequences;
    Dtype query_dtype, value_dtype;  // of query and key; of value, output and their gradients
    FeatureMap map;
    Precision precision;
    float eps;
    bool normalize;  // otherwise the output is the numerator alone
    bool causal;
    int segments;     // pieces that each sequence is cut into, a block of threads for each; 1: one block walks it
    Int whole;        // but so many rows of the batch, of a batch of one heads of keys, are walked whole, before others
    void* workspace;  // workspace_bytes of the same call; may be null where that is 0
    void* stream;     // cudaStream_t
};

struct AttentionForward : Attention {
    State initial;      // what came before; not causal: what the sums over the keys begin with
    State last;         // after the last key, or the sums over all keys (not causal: never null)
    void* out;          // (B, H, N, M), value_dtype
    float* normalizer;  // (B, H, N)
};

struct AttentionBackward : Attention {
    Tensor4 grad_out;              // (B, H, N, M), value_dtype
    const float* grad_normalizer;  // (B, H, N), or null
    State grad_last;               // of `last`
    State state;                   // causal: `initial`; otherwise `last` of the forward pass
    const void* out;               // as the forward pass wrote them
    const float* normalizer;
    // Gradients that are null are not computed.
    void* grad_query;  // (B, H, N, D), query_dtype
    // What each query head adds to the gradients of its key head, which are the sums over the group.
    void* grad_key;      // (B, H, L, D), query_dtype
    void* grad_value;    // (B, H, L, M), value_dtype
    State grad_initial;  // S (sequences, H, D, M), z (sequences, H, D)
};

// One decoding step: s += phi(k) v^T, z += phi(k), out = phi(q)^T s / (phi(q)^T z + eps).
// The tensors have no length: their `position` stride means nothing. The state has any strides.
struct Step {
    Tensor4 query, key, value;  // (B, H, D), (B, H_kv, D), (B, H_kv, M)
    Tensor4 s, z;               // float32; s: `position` is the stride of D and `dim` that of M
    void* out;                  // (B, H, M), contiguous, value_dtype
    Int batch, heads, kv_heads, dim, value_dim;
    const Int* state_indices;  // (B): the slot of the state that a row works on, or null: its own
    Int slots;                 // of the state; a row whose slot is none of them is empty, and its output 0
    Dtype query_dtype, value_dtype;
    FeatureMap map;
    float eps;
    bool normalize;  // otherwise the output is the numerator alone
    void* stream;
};

// The result of a call: the CUDA error (0: none) and the kernel whose launch returned it.
struct Status {
    int error;
    const char* kernel;
};

// Bytes of scratch that a call needs. It reads `segments`, and of the pointers only which are null.
Int workspace_bytes(const AttentionForward& call);
Int workspace_bytes(const AttentionBackward& call);

// Shared memory that a block of the largest kernel of these widths and precisions asks for, in bytes; -1 where there
// is no kernel for them. A GPU that offers a block less cannot run the call.
int shared_bytes(int dim, int value_dim, Dtype query_dtype, Dtype value_dtype, Precision precision);

// The same for a decoding step, which takes features of any width that fit.
Int step_shared_bytes(Int dim);

// What `segments` and `whole` of a call are best on the current GPU, which has so many multiprocessors.
struct Plan {
    int segments;
    Int whole;
};
Status best_plan(const AttentionForward& call, int multiprocessors, Plan* plan);
Status best_plan(const AttentionBackward& call, int multiprocessors, Plan* plan);

Status attention_forward(const AttentionForward& call);
Status attention_backward(const AttentionBackward& call);
Status step(const Step& call);

}  // namespace linattn
