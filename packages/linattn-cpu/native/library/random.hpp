// Random numbers from counters: Philox 4x32-10 (Salmon et al., 2011), as linattn_models.decoding.philox draws them.
#pragma once

#include <cstdint>

namespace linattn {

// Four numbers in (0, 1) for one position of a row.
inline void draw_numbers(std::int64_t seed, std::int64_t sample, std::int64_t position, double numbers[4]) {
    const auto place = static_cast<std::uint64_t>(position), bits = static_cast<std::uint64_t>(seed);
    std::uint32_t words[4] = {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                              static_cast<std::uint32_t>(sample), 0};
    std::uint32_t key[2] = {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53} * words[0], second = std::uint64_t{0xCD9E8D57} * words[2];
        words[0] = static_cast<std::uint32_t>(second >> 32) ^ words[1] ^ key[0];
        words[2] = static_cast<std::uint32_t>(first >> 32) ^ words[3] ^ key[1];
        words[1] = static_cast<std::uint32_t>(second);
        words[3] = static_cast<std::uint32_t>(first);
        key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 4; ++i) numbers[i] = (words[i] + 0.5) / 4294967296.0;
}

}  // namespace linattn
