// What one thread does for one row, whether the call has one row or many.
#pragma once

#include "kernels/decoder/blocks.hpp"
#include "kernels/decoder/heads.hpp"
#include "kernels/decoder/rows.hpp"
#include "kernels/decoder/sampling.hpp"
#include "kernels/decoder/window.hpp"
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

// The memory of `attend_head`: vectors of a head, and the weights of a window.
struct HeadMemory {
    HeadMemory(const DecoderModel& model, float* memory)
        : query(memory),
          key(query + mapped(model)),
          scaled(key + mapped(model)),
          turned(scaled + padded(model)),
          value(turned + padded(model)),
          weights(value + padded(model)) {}

    float *query, *key;      // mapped
    float *scaled, *turned;  // a query or key times a factor, and after its rotation
    float *value, *weights;  // with a window: the value that leaves it, and the weights of its keys

    static std::int64_t padded(const DecoderModel& model) { return round_up(model.head_dim, W<float>); }
    static std::int64_t mapped(const DecoderModel& model) { return round_up(model.features, W<float>); }
    static std::int64_t numbers(const DecoderModel& model) {
        return 2 * mapped(model) + 3 * padded(model) + round_up(model.window, W<float>);
    }
};

// A query or key after its rotation, which is written to `to`; without rotary positions, `from` itself.
static const float* apply_rotation(const DecoderModel& model, const float* from, const float* rotation, float* to) {
    if (rotation_numbers(model) == 0) return from;
    rotate(from, rotation, model.head_dim, to);
    return to;
}

// phi of a vector of head `index`, to another place. `maps`: the learned maps of all heads, or null. Returns what
// `map_learned` does; 0 for other maps.
static float map_head(const DecoderModel& model, const float* maps, std::int64_t index, const float* from, float* to) {
    const std::int64_t D = model.head_dim, F = model.features;
    if (maps != nullptr) return map_learned(maps + index * D * F / 2, from, D, F, to);
    map_vector(model.map, from, D, to);
    return 0;
}

LINATTN_INLINE void scale(const float* from, std::int64_t count, float factor, float* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

// An input of a sequence, and its place in the memories of rows.
struct HeadInput {
    std::int64_t sequence, position;
    const float *normed, *qkv, *rotation;
    float* heads;
};

// The logarithm of the factor of a head's state before an input is added, with a `decay_weight`: log sigmoid.
static float log_decay_of(const DecoderModel& model, const DecoderLayer& layer, const HeadInput& input,
                          std::int64_t head) {
    const float x = layer.decay[head] + dot(input.normed, layer.decay_weight + head * model.embed, model.embed);
    return (x < 0 ? x : 0.0f) - __builtin_log1pf(__builtin_expf(x < 0 ? x : -x));
}

// `attend_head` of a model with a window. Added to the sums is the key that leaves it, after a decay by the factor of its
// position.
static void attend_with_window(const Thread& thread, std::int64_t layer, const HeadInput& input, std::int64_t head,
                               const HeadMemory& memory) {
    constexpr float kEps = 1e-30f;  // changes no normalizer; 0 / 0 would be NaN
    const DecoderModel& model = thread.model;
    const DecoderLayer& weights = model.layers[layer];
    const bool gated = weights.decay_weight != nullptr;
    const std::int64_t D = model.head_dim, F = model.features, size = model.window, group = group_of(model);
    const float root = 1.0f / __builtin_sqrtf(__builtin_sqrtf(static_cast<float>(D)));  // of scores' scale
    const std::int64_t index = input.sequence * model.kv_heads + head;
    float *const s = thread.call.s[layer] + index * F * D, *const z = thread.call.z[layer] + index * F;
    const Ring ring{thread.call.keys[layer] + index * size * (D + gated), thread.call.values[layer] + index * size * D,
                    D, D + gated};
    const bool is_full = input.position >= size;
    const std::int64_t slot = input.position % size, count = is_full ? size : input.position + 1;
    float *const own_key = ring.keys + slot * ring.key_stride, *const own_value = ring.values + slot * D;
    float decay = weights.decay == nullptr || gated ? 1.0f : weights.decay[head];
    if (is_full) {
        scale(own_key, D, root, memory.scaled);
        map_head(model, weights.key_map, head, memory.scaled, memory.key);
        std::memcpy(memory.value, own_value, D * sizeof(float));
        if (gated) decay = __builtin_expf(own_key[D]);
    }
    const float *const keys = input.qkv + model.embed, *const values = keys + key_numbers(model);
    std::memcpy(own_key, apply_rotation(model, keys + head * D, input.rotation, memory.turned), D * sizeof(float));
    std::memcpy(own_value, values + head * D, D * sizeof(float));
    if (gated) own_key[D] = log_decay_of(model, weights, input, head);
    const Visit first = weights.decay == nullptr ? Visit::add : Visit::decay_and_add;
    for (std::int64_t q = head * group; q < (head + 1) * group; ++q) {
        float *const out = input.heads + q * D, far_weight = -__builtin_inff();
        const float* const query = apply_rotation(model, input.qkv + q * D, input.rotation, memory.turned);
        if (is_full) {
            scale(query, D, root, memory.scaled);
            const float log_scale = map_head(model, weights.query_map, q, memory.scaled, memory.query);
            const Visit visit = q > head * group ? Visit::read : first;
            const HeadStep step{memory.query, memory.key, memory.value, s, z, out, F, D, decay};
            const float normalizer = step_head(visit, step, kEps);
            if (normalizer > 0) far_weight = __builtin_logf(normalizer) + log_scale + weights.log_gamma[q];
        }
        scale(query, D, root * root, memory.scaled);
        join_window(ring, memory.scaled, count, far_weight, out, memory.weights, out);
    }
}

// One key/value head of an input: updates its state, which the queries of its group read.
static void attend_head(const Thread& thread, std::int64_t layer, const HeadInput& input, std::int64_t head,
                        float* space) {
    const DecoderModel& model = thread.model;
    const HeadMemory memory(model, space);
    if (model.window > 0) return attend_with_window(thread, layer, input, head, memory);
    const std::int64_t D = model.head_dim, F = model.features, group = group_of(model);
    const std::int64_t index = input.sequence * model.kv_heads + head;
    const float *const keys = input.qkv + model.embed, *const values = keys + key_numbers(model);
    const DecoderLayer& weights = model.layers[layer];
    float decay = 1;
    if (weights.decay_weight != nullptr) {
        decay = __builtin_expf(log_decay_of(model, weights, input, head));
    } else if (weights.decay != nullptr) {
        decay = weights.decay[head];
    }
    const float* const key = apply_rotation(model, keys + head * D, input.rotation, memory.turned);
    map_head(model, weights.key_map, head, key, memory.key);
    float *const s = thread.call.s[layer] + index * F * D, *const z = thread.call.z[layer] + index * F;
    for (std::int64_t q = head * group; q < (head + 1) * group; ++q) {
        const Visit visit = q > head * group           ? Visit::read
                            : weights.decay == nullptr ? Visit::add
                                                       : Visit::decay_and_add;
        const float* const query = apply_rotation(model, input.qkv + q * D, input.rotation, memory.turned);
        map_head(model, weights.query_map, q, query, memory.query);
        const HeadStep step{memory.query, memory.key, values + head * D, s, z, input.heads + q * D, F, D, decay};
        step_head(visit, step, model.eps);
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
