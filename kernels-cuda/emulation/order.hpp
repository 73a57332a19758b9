// The order in which the warps of a block and the lanes of a warp take their turns.
#pragma once

#include <utility>

namespace linattn::emulation {

struct Order {
    int at[32];

    // 0: their own; -1: the reverse; otherwise drawn from the seed.
    Order(int seed, int count) {
        for (int i = 0; i < count; ++i) at[i] = seed == -1 ? count - 1 - i : i;
        if (seed == 0 || seed == -1) return;
        auto state = static_cast<unsigned long long>(seed);
        for (int i = count - 1; i > 0; --i) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            std::swap(at[i], at[(state >> 33) % static_cast<unsigned>(i + 1)]);
        }
    }
};

}  // namespace linattn::emulation
