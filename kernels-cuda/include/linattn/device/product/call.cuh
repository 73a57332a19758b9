// The product that every pass of the operator is an instance of. For each sequence and head, with rows a_i, keys b_j
// and values c_j,
//
//     out_i = sum_j (a_i . b_j + bias) c_j,    j <= i, or j >= i where it runs backwards in time,
//
// in chunks of the sequence: within a chunk the masked matrix of a_i . b_j, between chunks the state
//
//     X = sum_j b_j c_j^T   (A x E),
//
// whose sums are float32 and stay in registers; the tensor cores read a copy of it from shared memory.
//
//     pass        a             b               c             time       bias    column of c   result
//     forward     phi(q)        phi(k)          v             forwards   -       1: gives n    (.) / n
//     grad q      g = G / n     v               phi(k)        forwards   h_i     -             (.) phi'(q), and h
//     grad k      v             g               phi(q)        backwards  h_j     -             (.) phi'(k)
//     grad v      phi(k)        phi(q)          g             backwards  -       -             (.)
//     sums        -             phi(k), phi(q)  v, g          any        -       1, h          X alone
//     read        as forward, but all of X and no keys: attention that is not causal
//
// n_i = phi(q_i) . z_i + eps, h_i = -g_i . out_i. Keys and values of the last two rows of gradients are queries and
// their gradients: time runs backwards, and R takes the place of S (equations 13 to 15 of the paper, with the
// normalizer folded in). These two exchange b and c, and their states are each other's transpose: where a slice holds
// all columns, one pass, a pair, reads everything once and computes both.
//
// One block computes a slice of the columns of c for one segment of one sequence and head.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

// Which heads of a group of queries begin with a state: each with its own, all with that of their key head, or only the
// first with that of their key head, where the results of the heads are added up. A state of a key head is written by
// the first.
enum class Readers : int { own = 0, group = 1, first = 2 };

// A state in global memory with strides in elements: X (rows of A, columns of C) and a vector, z or r. The vector has a
// number for each row of X where the values have one more column, and for each column (of a pair: row) where there is a
// bias.
struct StateView {
    float* matrix;
    float* vector;
    Int sequence, head, segment, row, column;          // strides of `matrix`
    Int vector_sequence, vector_head, vector_segment;  // of `vector`, whose numbers are neighbors
    Readers readers;
};

enum class Bias : int { none = 0, of_row = 1, of_key = 2 };
enum class Column : int { none = 0, ones = 1, bias = 2 };
enum class Finish : int { plain = 0, divide = 1, derivative = 2 };

// A contiguous tensor (B, H, length of rows, width).
struct Result {
    void* data;
    Int width;
    Dtype dtype;
    bool vectors;  // rows begin at multiples of 16 bytes
};

struct Product {
    Operand row, key, value;
    bool pair;  // two results: `second_result` of `second_row`, a', which is multiplied with c
    Operand second_row;
    Int heads, sequences, queries, keys;  // `queries` and `keys` are lengths of the tensors
    int group;  // so many neighboring heads share one head of keys; 1: these are heads of keys
    const Int* key_lengths;
    const unsigned char* mask;  // (B, L)
    const Int* cu_seqlens;
    int slices, segments;
    bool reads, sums;       // whether there are rows to compute, and keys to add
    bool finds_bias_alone;  // the rows are read for h, and have no results
    bool backwards;
    bool rows_are_keys;  // rows are positions of keys: gradients of k and v
    Bias bias;
    Column column;
    Finish finish;
    const float* normalizer;  // (B, H, N), of queries
    const float* row_bias;    // h, (B, H, N); where the bias is found here: what is added to it, or null
    float* out_bias;          // h, for the pass that finds it: that of the queries
    Operand output;           // of the forward pass, for h
    StateView start, last;    // without a matrix: zeros; not written
    StateView query_sums;     // of gradients of queries: where a lean kernel writes the sums over them, too
    Result result, second_result;
    float* out_normalizer;  // (B, H, N), for Finish::divide
    bool normalize;         // Finish::divide divides, and does not only write the normalizers; h depends on the output
    Operand origin;         // what the derivative is taken at, for Finish::derivative
    float eps;
    int first_segment, launched_segments;  // those of the segments that have blocks
};

LINATTN_DEVICE Int clamp(Int x, Int low, Int high) { return x < low ? low : x > high ? high : x; }

// The place of a sequence; lengths beyond what exists are taken as all that exists.
LINATTN_DEVICE Place place_of(const Product& call, Int sequence, Int head) {
    if (call.cu_seqlens == nullptr) {
        const int keys = static_cast<int>(call.keys);
        const int live =
            call.key_lengths == nullptr ? keys : static_cast<int>(clamp(call.key_lengths[sequence], 0, keys));
        return {sequence, head, 0, static_cast<int>(call.queries), keys, live};
    }
    const int start = static_cast<int>(clamp(call.cu_seqlens[sequence], 0, call.keys));
    const int length = static_cast<int>(clamp(call.cu_seqlens[sequence + 1], start, call.keys)) - start;
    return {0, head, start, length, length, length};
}

// Segments begin at the same positions whatever the kernels' chunks are, for one pass goes on from another's sums.
constexpr int segment_grain = 64;

LINATTN_DEVICE Int positions_of_segment(int positions, int segments) {
    const Int grains = positions / segment_grain + (positions % segment_grain != 0);
    return (grains + segments - 1) / segments * segment_grain;
}

// What a block works on: which slice of the values' columns, which segment of which sequence and head.
struct Work {
    Place place;
    Int sequence, column;  // where the slice begins
    Int first_query;       // where the numbers of its queries begin in an array (B, H, N)
    Int first_row;         // where its rows begin among those of the result
    int segment;

    LINATTN_DEVICE void find_rows(const Product& call) {
        const Int head = place.batch * call.heads + place.head;
        first_query = head * call.queries + place.start;
        first_row = head * (call.rows_are_keys ? call.keys : call.queries) + place.start;
    }

    // Whether this block begins with that state, and whether it is the one to write it.
    LINATTN_DEVICE bool begins_with(const Product& call, const StateView& view) const {
        return view.readers != Readers::first || is_first(call);
    }
    LINATTN_DEVICE bool writes(const Product& call, const StateView& view) const {
        return view.readers == Readers::own || is_first(call);
    }
    LINATTN_DEVICE bool is_first(const Product& call) const {
        return place.head == head_of_group(place.head, call.group) * call.group;
    }

    LINATTN_DEVICE Int head_of(const Product& call, const StateView& view) const {
        return head_of_group(place.head, view.readers == Readers::own ? 1 : call.group);
    }

    // Where the numbers of a state lie for this block; null where there are none.
    LINATTN_DEVICE float* matrix(const Product& call, const StateView& view) const {
        return view.matrix == nullptr
                   ? nullptr
                   : view.matrix + sequence * view.sequence + head_of(call, view) * view.head + segment * view.segment;
    }
    LINATTN_DEVICE float* vector(const Product& call, const StateView& view) const {
        return view.vector == nullptr ? nullptr
                                      : view.vector + sequence * view.vector_sequence +
                                            head_of(call, view) * view.vector_head + segment * view.vector_segment;
    }
};

LINATTN_DEVICE Work work_of_block(const Product& call, int columns_of_slice, int first_segment) {
    Work work;
    const Int index = block_x();
    work.segment = first_segment + block_y();
    work.column = index % call.slices * columns_of_slice;
    work.sequence = index / call.slices / call.heads;
    work.place = place_of(call, work.sequence, index / call.slices % call.heads);
    work.find_rows(call);
    return work;
}

// Later rows of a causal chunk see more keys, so their warps multiply more. Each scheduler of a multiprocessor runs
// every fourth warp of a block. To give all schedulers the same work, each block gives its warps the rows in another
// order. Fibonacci hashing spreads the orders over the blocks of a multiprocessor, whatever the distance of their
// indices.
LINATTN_DEVICE int rotation(const Product& call, int row_groups) {
    const Int block = block_y() * call.sequences * call.heads * call.slices + block_x();
    return static_cast<int>((static_cast<u32>(block) * 2654435769u >> 16) * row_groups >> 16);
}

}  // namespace linattn
