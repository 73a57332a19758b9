// Tokens from a head's parameters and the caller's random numbers. The formulas are those of linattn_models.heads, so
// that the same numbers give the same tokens.
#pragma once

#include "kernels/decoder/choice.hpp"

LINATTN_BEGIN
namespace decoding {

// A standard logistic random number, by the inverse of the distribution function.
LINATTN_INLINE double logistic(double uniform) {
    const double lowest = __DBL_EPSILON__ / 2, highest = 1.0 - lowest;
    const double u = uniform < lowest ? lowest : uniform > highest ? highest : uniform;
    return __builtin_log(u / (1.0 - u));
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
//
// `component`: the logit of the chosen one; `noise`: logistic random numbers of each channel.
static void draw_logistics(const TokenWeights& tokens, const float* component, const float* noise,
                           std::int64_t* drawn) {
    const std::int64_t K = tokens.choices, C = tokens.channels;
    float unit[3] = {0, 0, 0};
    for (std::int64_t c = 0; c < C; ++c) {
        const float predicted = component[(1 + C + c) * K], lowest = tokens.lowest_log_scale;
        float value = component[(1 + c) * K] + noise[c] * __builtin_expf(predicted < lowest ? lowest : predicted);
        const float* coefficients = component + (1 + 2 * C) * K;
        if (c == 1) value += __builtin_tanhf(coefficients[0]) * unit[0];
        if (c == 2) {
            value += __builtin_tanhf(coefficients[K]) * unit[0] + __builtin_tanhf(coefficients[2 * K]) * unit[1];
        }
        drawn[c] = level_at(value, tokens.levels);
        unit[c] = unit_at(drawn[c], tokens.levels);
    }
}

// Temperatures below this one take the likeliest token, and filters see the probabilities at temperature 1.
inline constexpr double kLeastTemperature = 1e-30;

// Numbers of float32 that the draw of a token needs: weights of tokens that top_p may pass, and sums in double.
LINATTN_INLINE std::int64_t draw_numbers(const TokenWeights& tokens, const DecoderCall& call) {
    return call.quantiles == nullptr ? 0 : 3 * round_up(tokens.choices, kPanel);
}

// The token of row b. May overwrite the parameters' padding and `memory`.
static void draw_token(const TokenWeights& tokens, const DecoderCall& call, std::int64_t b, float* parameters,
                       float* memory) {
    const std::int64_t K = tokens.choices, C = tokens.channels;
    const double* quantiles = call.quantiles + 4 * b;
    const double temperature = call.temperatures[b];
    auto* const sums = reinterpret_cast<double*>(memory + round_up(K, kPanel));
    float excluded = -__builtin_inff();
    if (tokens.head == Head::categorical) {
        const double seen = temperature < kLeastTemperature ? 1.0 : temperature;
        const Filters filters{static_cast<float>(seen), call.top_ks[b], call.top_ps[b], call.min_ps[b]};
        excluded = excluded_by(filters, parameters, K, memory);
    }
    const std::int64_t chosen = invert(parameters, K, quantiles[0], temperature, excluded, sums);
    if (tokens.head == Head::categorical) {
        call.drawn[b] = chosen;
        return;
    }
    float noise[3];
    for (std::int64_t c = 0; c < C; ++c) noise[c] = static_cast<float>(logistic(quantiles[1 + c]) * temperature);
    draw_logistics(tokens, parameters + chosen, noise, call.drawn + b * C);
}

}  // namespace decoding
LINATTN_END
