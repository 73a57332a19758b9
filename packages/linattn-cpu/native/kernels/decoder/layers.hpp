// What one thread does for one row, whether the call has one row or many.
#pragma once

#include "kernels/decoder/blocks.hpp"
#include "kernels/decoder/heads.hpp"
#include "kernels/decoder/rows.hpp"
#include "kernels/decoder/sampling.hpp"
#include "team.hpp"

LINATTN_BEGIN
namespace decoding {

// A thread's view of a call, whose work is a sequence of phases; each of them is cut into parts.
struct Thread {
    const DecoderModel& model;
    const DecoderCall& call;
    Member& member;

    // Calls work() for parts of a phase until all of them are done, by this thread or by others.
    template <class Work>
    void phase(const Work& work) const {
        while (next_part(member) >= 0) work();
    }

    // The range of `count` items that belongs to the part that this thread holds.
    Range share_of(std::int64_t count) const {
        return {count * member.part / member.parts, count * (member.part + 1) / member.parts};
    }
};

// The norm of the stream before layer `index`; null: none. With index = num_layers: before the model's last norm.
static const NormWeights* norm_before(const DecoderModel& model, std::int64_t index) {
    if (model.norm_first) return index < model.num_layers ? &model.layers[index].norm1 : nullptr;
    return index > 0 ? &model.layers[index - 1].norm2 : nullptr;
}

// The norm between a layer's attention and its feed-forward network.
static const NormWeights* norm_between(const DecoderModel& model, const DecoderLayer& layer) {
    return model.norm_first ? &layer.norm2 : &layer.norm1;
}

static void add(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

static std::int64_t position_of(const DecoderCall& call, Place place) {
    return (call.positions == nullptr ? call.position : call.positions[place.sequence]) + place.input;
}

// An input of the first layer: embeddings or the start vector, plus the vector of the position. Writes a padded row.
static void embed_input(const Thread& thread, Place place, float* to) {
    const TokenWeights& tokens = thread.model.tokens;
    const DecoderCall& call = thread.call;
    const auto [b, i] = place;
    const std::int64_t embed = thread.model.embed;
    std::memset(to, 0, round_up(embed, kPanel) * sizeof(float));
    if (tokens.channels == 0) {
        add(call.vectors + (b * call.inputs + i) * embed, embed, to);
        return;
    }
    if (call.begins && i == 0) {
        add(tokens.start, embed, to);
    } else {
        const std::int64_t taken = call.inputs - call.begins;
        const std::int64_t* token = call.tokens + (b * taken + i - call.begins) * tokens.channels;
        for (std::int64_t c = 0; c < tokens.channels; ++c) {
            add(tokens.embeddings[c] + token[c] * embed, embed, to);
        }
    }
    if (tokens.positions != nullptr) add(tokens.positions + position_of(call, place) * embed, embed, to);
}

// The numbers of a rotation: none without rotary positions.
LINATTN_INLINE std::int64_t rotation_numbers(const DecoderModel& model) {
    return model.frequencies == nullptr ? 0 : model.head_dim;
}

// The rotation of an input; see `rotate`.
static void write_rotation(const Thread& thread, Place place, float* to) {
    const double* const frequencies = thread.model.frequencies;
    const auto position = static_cast<double>(position_of(thread.call, place));
    const std::int64_t half = rotation_numbers(thread.model) / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        to[i] = static_cast<float>(__builtin_cos(position * frequencies[i]));
        to[i + half] = static_cast<float>(__builtin_sin(position * frequencies[i]));
    }
}

// The numbers of all keys of a row, or of all values.
LINATTN_INLINE std::int64_t key_numbers(const DecoderModel& model) { return model.kv_heads * model.head_dim; }

// The queries that read one key/value head.
LINATTN_INLINE std::int64_t group_of(const DecoderModel& model) { return model.heads / model.kv_heads; }

// The numbers of a row of queries, keys and values. `attend_head` reads whole vectors, so up to a vector past the keys.
LINATTN_INLINE std::int64_t qkv_numbers(const DecoderModel& model) {
    const std::int64_t keys = key_numbers(model);
    return model.embed + keys + (keys < W<float> ? W<float> : keys);
}

// The memory that `attend_head` needs, for phi(q) and phi(k).
LINATTN_INLINE std::int64_t mapped_numbers(const DecoderModel& model) { return 2 * round_up(model.head_dim, W<float>); }

// A query or key of a head as attention reads it.
static void prepare_vector(const DecoderModel& model, const float* from, const float* rotation, float* to) {
    if (rotation_numbers(model) > 0) {
        rotate(from, rotation, model.head_dim, to);
        from = to;
    }
    map_vector(model.map, from, model.head_dim, to);
}

// One key/value head of an input of sequence b: updates its state, which the queries of its group read. `qkv` and `heads`
// are whole rows.
static void attend_head(const Thread& thread, std::int64_t layer, std::int64_t b, std::int64_t head, const float* qkv,
                        const float* rotation, float* heads, float* mapped) {
    const DecoderModel& model = thread.model;
    const std::int64_t D = model.head_dim, index = b * model.kv_heads + head, group = group_of(model);
    float *const query = mapped, *const key = mapped + mapped_numbers(model) / 2;
    const float *const keys = qkv + model.embed, *const values = keys + key_numbers(model);
    const float* const decay = model.layers[layer].decay;
    prepare_vector(model, keys + head * D, rotation, key);
    float *const s = thread.call.s[layer] + index * D * D, *const z = thread.call.z[layer] + index * D;
    for (std::int64_t q = head * group; q < (head + 1) * group; ++q) {
        const Visit visit = q > head * group ? Visit::read : decay == nullptr ? Visit::add : Visit::decay_and_add;
        prepare_vector(model, qkv + q * D, rotation, query);
        step_head(visit, {query, key, values + head * D, s, z, heads + q * D, D, decay == nullptr ? 1 : decay[head]},
                  model.eps);
    }
}

// Sums of W outputs; with int8 weights, times the scales of these weights.
LINATTN_INLINE Vec<float> scaled(const DecoderModel& model, const PackedMatrix& matrix, std::int64_t output,
                                 Vec<float> sums) {
    return model.format == WeightFormat::int8 ? sums * load(matrix.scales + output) : sums;
}

// Copies the head's parameters for sequence b to the caller's memory, and draws its token from them.
static void write_parameters(const Thread& thread, std::int64_t b, float* parameters, float* memory) {
    const DecoderCall& call = thread.call;
    const TokenWeights& tokens = thread.model.tokens;
    const std::int64_t count = tokens.output.outputs;
    std::memcpy(call.outputs + b * count, parameters, count * sizeof(float));
    if (call.drawn == nullptr) return;
    draw_token(tokens, call, b, parameters, memory);
}

}  // namespace decoding
LINATTN_END
