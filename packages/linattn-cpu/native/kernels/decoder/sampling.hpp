// Tokens from a head's parameters and the caller's random numbers. The formulas are those of linattn_models.heads, so
// that the same numbers give the same tokens.
#pragma once

#include "kernels/decoder/choice.hpp"

LINATTN_BEGIN
namespace decoding {

// A standard logistic random number, by the inverse of the distribution function.
LINATTN_INLINE float logistic(float uniform) {
    const float lowest = __FLT_EPSILON__ / 2, highest = 1.0f - lowest;
    const float u = uniform < lowest ? lowest : uniform > highest ? highest : uniform;
    return __builtin_logf(u / (1.0f - u));
}

// The level nearest to x in [-1, 1]; 0 for NaN, as in linattn_models.heads. `generate` refuses NaN parameters.
LINATTN_INLINE std::int64_t level_at(float x, std::int64_t levels) {
    const float half_range = static_cast<float>(levels - 1) / 2.0f;
    const float level = __builtin_rintf(x * half_range + half_range);
    if (!(level > 0)) return 0;
    return level > static_cast<float>(levels - 1) ? levels - 1 : static_cast<std::int64_t>(level);
}

LINATTN_INLINE float unit_at(std::int64_t level, std::int64_t levels) {
    return static_cast<float>(level) * static_cast<float>(2.0 / static_cast<double>(levels - 1)) - 1.0f;
}

// The parameters are groups of K numbers: logits, means of each channel, log-scales of each channel, then the
// coefficients of green on red, blue on red and blue on green.
static void draw_logistics(const TokenWeights& tokens, const float* parameters, const float* waits,
                           const float* uniform, float temperature, std::int64_t* drawn) {
    const std::int64_t K = tokens.choices, C = tokens.channels;
    const float* component = parameters + choose(parameters, K, waits, temperature);
    float unit[3] = {0, 0, 0};
    for (std::int64_t c = 0; c < C; ++c) {
        float value = component[(1 + c) * K];
        if (uniform != nullptr) {
            const float predicted = component[(1 + C + c) * K], lowest = tokens.lowest_log_scale;
            const float log_scale = predicted < lowest ? lowest : predicted;
            value += logistic(uniform[c]) * temperature * __builtin_expf(log_scale);
        }
        const float* coefficients = component + (1 + 2 * C) * K;
        if (c == 1) value += __builtin_tanhf(coefficients[0]) * unit[0];
        if (c == 2) {
            value += __builtin_tanhf(coefficients[K]) * unit[0] + __builtin_tanhf(coefficients[2 * K]) * unit[1];
        }
        drawn[c] = level_at(value, tokens.levels);
        unit[c] = unit_at(drawn[c], tokens.levels);
    }
}

// The token of row b from its parameters. May overwrite their padding and, with top_p, `weights`.
static void draw_token(const TokenWeights& tokens, const DecoderCall& call, std::int64_t b, float* parameters,
                       float* weights) {
    const float* waits = call.waits == nullptr ? nullptr : call.waits + b * tokens.choices;
    const float* uniform = call.uniform == nullptr ? nullptr : call.uniform + b * tokens.channels;
    std::int64_t* drawn = call.drawn + b * tokens.channels;
    if (tokens.head == Head::mixture_of_logistics) {
        draw_logistics(tokens, parameters, waits, uniform, call.temperature, drawn);
    } else if (waits != nullptr && has_filters(call)) {
        *drawn = choose_filtered(call, parameters, tokens.choices, waits, weights);
    } else {
        *drawn = choose(parameters, tokens.choices, waits, call.temperature);
    }
}

}  // namespace decoding
LINATTN_END
