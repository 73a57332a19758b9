// Measures the machine's limit: multiply-adds of numbers that stay in registers.
#pragma once

#include "schedule.hpp"

LINATTN_BEGIN

// The number of independent sums, enough to fill the pipelines of every known core.
inline constexpr int kPeakSums = 12;

LINATTN_LOOP float multiply_add(std::int64_t steps, Vec<float> factor) {
    Vec<float> sums[kPeakSums];
#pragma GCC unroll 12
    for (int i = 0; i < kPeakSums; ++i) sums[i] = factor + static_cast<float>(i);
    for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kPeakSums; ++i) sums[i] = sums[i] * factor + factor;
    }
#pragma GCC unroll 12
    for (int i = 1; i < kPeakSums; ++i) sums[0] += sums[i];
    return sum<float>(sums[0]);
}

// Runs `steps` steps of kPeakSums vectors on each of `threads` threads; returns the operations of all.
static std::int64_t fused_multiply_adds(int threads, std::int64_t steps) {
    share(threads, threads, static_cast<std::int64_t>(sizeof(float)), [&](std::int64_t, char* scratch) {
        const float result = multiply_add(steps, broadcast(0.5f));
        std::memcpy(scratch, &result, sizeof result);
    });
    return threads * steps * kPeakSums * W<float> * 2;
}

LINATTN_END
