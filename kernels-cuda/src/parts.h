// Calls in two parts: sequences that are walked whole, and others that are cut.
#pragma once

#include "passes.h"

namespace linattn {

// A part of the units of a call: rows of its batch, or of one row heads of keys, each with its query heads.
class Part {
public:
    Part(const Attention& call, Int first, Int count)
        : of_rows_(call.batch > 1),
          first_(first),
          count_(count),
          group_(group_of(call)),
          heads_(of_rows_ ? call.heads : group_),
          kv_heads_(of_rows_ ? call.kv_heads : 1) {}

    AttentionForward of(AttentionForward call) const {
        narrow(call);
        move(call.initial, call, kv_heads_);
        move(call.last, call, kv_heads_);
        move_output(call.out, call.normalizer, call);
        return call;
    }

    AttentionBackward of(AttentionBackward call) const {
        const Int queries = heads_ * call.queries, keys = heads_ * call.keys;
        narrow(call);
        move(call.grad_out, group_, call.value_dtype);
        move(call.grad_normalizer, queries);
        move(call.grad_last, call, kv_heads_);
        move(call.state, call, kv_heads_);
        move_output(call.out, call.normalizer, call);
        move(call.grad_query, queries * call.dim, call.query_dtype);
        move(call.grad_key, keys * call.dim, call.query_dtype);
        move(call.grad_value, keys * call.value_dim, call.value_dtype);
        move(call.grad_initial, call, heads_);
        return call;
    }

private:
    void narrow(Attention& call) const {
        move(call.query, group_, call.query_dtype);
        move(call.key, 1, call.query_dtype);
        move(call.value, 1, call.value_dtype);
        (of_rows_ ? call.batch : call.kv_heads) = count_;
        if (of_rows_) {
            call.sequences = count_;
            move(call.key_lengths, 1);
            move(call.mask, call.keys);
        } else {
            call.heads = count_ * group_;
        }
        call.whole = 0;
    }

    // Moves an address on, of which a unit has so many numbers.
    template <class Number>
    void move(Number*& data, Int numbers) const {
        if (data != nullptr) data += first_ * numbers;
    }
    template <class Void>
    void move(Void*& data, Int numbers, Dtype dtype) const {
        using Bytes = std::conditional_t<std::is_const_v<Void>, const char, char>;
        if (data != nullptr) data = static_cast<Bytes*>(data) + first_ * numbers * (dtype == Dtype::float32 ? 4 : 2);
    }
    void move(Tensor4& x, Int heads, Dtype dtype) const { move(x.data, of_rows_ ? x.batch : heads * x.head, dtype); }
    void move(State& state, const Attention& call, Int heads) const {
        move(state.s, heads * call.dim * call.value_dim);
        move(state.z, heads * call.dim);
    }
    template <class Out, class Normalizer>
    void move_output(Out*& out, Normalizer*& normalizer, const Attention& call) const {
        move(out, heads_ * call.queries * call.value_dim, call.value_dtype);
        move(normalizer, heads_ * call.queries);
    }

    bool of_rows_;
    Int first_, count_, group_, heads_, kv_heads_;
};

inline Int units_of(const Attention& call) { return call.batch > 1 ? call.batch : call.kv_heads; }

template <class Call>
Call whole_part(const Call& call) {
    Call part = Part(call, 0, call.whole).of(call);
    part.segments = 1;
    return part;
}
template <class Call>
Call cut_part(const Call& call) {
    return call.whole == 0 ? call : Part(call, call.whole, units_of(call) - call.whole).of(call);
}

// Runs the parts of a call one after another; they share its workspace.
template <class Call>
Status run_parts(Status (*run)(const Call&, Wave*), const Call& call) {
    const Status status = call.whole == 0 ? Status{0, nullptr} : run(whole_part(call), nullptr);
    return status.error != 0 ? status : run(cut_part(call), nullptr);
}

template <class Call>
Status plan_by(Status (*run)(const Call&, Wave*), Call call, int multiprocessors, Plan* plan) {
    Wave wave;
    call.segments = 1;
    call.whole = 0;
    const Status status = run(call, &wave);
    *plan = plan_of(call, wave, multiprocessors);
    return status;
}

}  // namespace linattn
