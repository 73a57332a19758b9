// The fields that the calls of every backend have. Include it after the backend's own calls header, which declares
// the structs Tensor4, State, Attention, AttentionForward, AttentionBackward and Step.
#pragma once

#include "seam/fields.hpp"

namespace linattn {

// Address, strides of batch, head, position and dim.
inline void load(Tensor4& field, PyObject* value) {
    PyObject** x = numbers(value, 5);
    load(field.data, x[0]), load(field.batch, x[1]), load(field.head, x[2]), load(field.position, x[3]);
    load(field.dim, x[4]);
}
// Addresses of s and z.
inline void load(State& field, PyObject* value) {
    PyObject** x = numbers(value, 2);
    load(field.s, x[0]), load(field.z, x[1]);
}

// The fields of both passes.
inline const FieldTable<Attention>& attention_fields() {
    static const FieldTable<Attention> table{
        {"query", set<&Attention::query>},
        {"key", set<&Attention::key>},
        {"value", set<&Attention::value>},
        {"batch", set<&Attention::batch>},
        {"heads", set<&Attention::heads>},
        {"kv_heads", set<&Attention::kv_heads>},
        {"queries", set<&Attention::queries>},
        {"keys", set<&Attention::keys>},
        {"dim", set<&Attention::dim>},
        {"value_dim", set<&Attention::value_dim>},
        {"key_lengths", set<&Attention::key_lengths>},
        {"cu_seqlens", set<&Attention::cu_seqlens>},
        {"sequences", set<&Attention::sequences>},
        {"query_dtype", set<&Attention::query_dtype>},
        {"value_dtype", set<&Attention::value_dtype>},
        {"map", set<&Attention::map>},
        {"eps", set<&Attention::eps>},
        {"normalize", set<&Attention::normalize>},
        {"causal", set<&Attention::causal>},
    };
    return table;
}

inline const FieldTable<AttentionForward>& forward_fields() {
    static const FieldTable<AttentionForward> table{
        {"initial", set<&AttentionForward::initial>},
        {"last", set<&AttentionForward::last>},
        {"out", set<&AttentionForward::out>},
        {"normalizer", set<&AttentionForward::normalizer>},
    };
    return table;
}

inline const FieldTable<AttentionBackward>& backward_fields() {
    static const FieldTable<AttentionBackward> table{
        {"grad_out", set<&AttentionBackward::grad_out>},
        {"grad_normalizer", set<&AttentionBackward::grad_normalizer>},
        {"grad_last", set<&AttentionBackward::grad_last>},
        {"state", set<&AttentionBackward::state>},
        {"out", set<&AttentionBackward::out>},
        {"normalizer", set<&AttentionBackward::normalizer>},
        {"grad_query", set<&AttentionBackward::grad_query>},
        {"grad_key", set<&AttentionBackward::grad_key>},
        {"grad_value", set<&AttentionBackward::grad_value>},
        {"grad_initial", set<&AttentionBackward::grad_initial>},
    };
    return table;
}

inline const FieldTable<Step>& step_fields() {
    static const FieldTable<Step> table{
        {"query", set<&Step::query>},
        {"key", set<&Step::key>},
        {"value", set<&Step::value>},
        {"s", set<&Step::s>},
        {"z", set<&Step::z>},
        {"out", set<&Step::out>},
        {"batch", set<&Step::batch>},
        {"heads", set<&Step::heads>},
        {"kv_heads", set<&Step::kv_heads>},
        {"dim", set<&Step::dim>},
        {"value_dim", set<&Step::value_dim>},
        {"query_dtype", set<&Step::query_dtype>},
        {"value_dtype", set<&Step::value_dtype>},
        {"map", set<&Step::map>},
        {"eps", set<&Step::eps>},
        {"normalize", set<&Step::normalize>},
        {"state_indices", set<&Step::state_indices>},
    };
    return table;
}

}  // namespace linattn
