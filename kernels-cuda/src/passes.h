// What the passes of the operator share: operands, states in their layouts, and launches one after another.
#pragma once

#include "product.h"

namespace linattn {

// The states of all sequences, heads and segments in the workspace: for each, D x M numbers of S and D of z.
struct SegmentStates {
    float* data;
    Int heads, dim, value_dim;  // heads of queries where each has its own, else of keys
    int segments;
    Readers readers;

    Int numbers() const { return dim * (value_dim + 1); }
    StateView view() const;
};

// A state as a tensor of its own, S (sequences, heads, D, M) and z (sequences, heads, D), of the heads of queries where
// each has its own, else of keys.
StateView view_of(const Attention& call, const State& state, Readers readers);

// Whether any of a state is given or wanted.
bool exists(const State& state);

// How many query heads read one head of keys.
int group_of(const Attention& call);

// The same state read with its rows as columns: X for the gradients of queries and keys.
StateView transposed(const StateView& view);

// The operands of the passes: phi(q), phi(k), v, the output, and g = G / n.
Operand queries_of(const Attention& call);
Operand keys_of(const Attention& call);
Operand values_of(const Attention& call);
Operand output_of(const AttentionBackward& call);
Operand gradient_of(const AttentionBackward& call);

// A product of this call, all operands and results yet to be filled in.
Product product_of(const Attention& call);

// sum_j phi(k_j) [v_j, 1]^T of each segment and head of keys.
Product sums_of_keys(const Attention& call);

Result result_of(void* data, Int width, Dtype dtype);

// The launches of a call in order until one fails, which is then what the whole came to. With a `wave`, nothing is
// launched; it takes the launch that fills most of a GPU.
class Launches {
public:
    explicit Launches(const Attention& call, Wave* wave = nullptr) : call_(call), start_{call.stream, wave} {}

    Launches& product(const Product& product);

    // Turns the sums of each segment into the state that it begins with, from `first` on, which has heads of keys;
    // `last` takes the total.
    Launches& scan(const SegmentStates& states, const State& first, const State& last, bool backwards);

    Status status() const { return status_; }

private:
    const Attention& call_;
    Start start_;
    Status status_ = {0, nullptr};
};

// How a call whose launches fill a GPU so far as `wave` says, uncut, is best launched.
Plan plan_of(const Attention& call, const Wave& wave, int multiprocessors);

}  // namespace linattn
