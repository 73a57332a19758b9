// The collectives of a warp.
#include <atomic>

#include "emulation/block.hpp"
#include "emulation/multiply.hpp"

namespace linattn::emulation {
namespace {

std::atomic<Int> products[schedulers];

// Waits for the other lanes; the last one calls `compute` for all.
template <class Compute>
void meet(Fiber& self, Wait wait, Place place, Compute compute) {
    Warp& warp = *self.warp;
    if (warp.arrived == 0) {
        warp.wait = wait;
        warp.place = place;
    } else if (warp.wait != wait || elsewhere(place, warp.place)) {
        self.wait = wait;
        self.place = place;
        current_block->give_up(warp.wait, warp.place, self);
    }
    self.wait = wait;
    self.place = place;
    warp.ready &= ~(1u << self.position);
    if (++warp.arrived < 32) {
        current_block->suspend(self);
    } else {
        warp.arrived = 0;
        warp.ready = ~0u;
        compute(warp);
    }
}

// Part m of lane l is the pair l of matrix m.
void hand_out(Warp& warp) {
    for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < 4; ++m) {
            const Row& row = warp.rows[8 * m + lane / 4];
            const unsigned long long word = row.words[lane % 4 / 2];
            warp.matrices[lane].parts[m] = static_cast<u32>(lane % 2 ? word >> 32 : word);
        }
    }
}

void hand_out_transposed(Warp& warp) {
    const auto number = [&warp](int row, int column) {
        return static_cast<u32>(warp.rows[row].words[column / 4] >> (16 * (column % 4))) & 0xffffu;
    };
    for (int lane = 0; lane < 32; ++lane) {
        const int column = lane / 4, row = 2 * (lane % 4);
        for (int m = 0; m < 4; ++m) {
            warp.matrices[lane].parts[m] = number(8 * m + row, column) | (number(8 * m + row + 1, column) << 16);
        }
    }
}

void exchange_values(Warp& warp) {
    u32 taken[32];
    for (int lane = 0; lane < 32; ++lane) taken[lane] = warp.values[warp.sources[lane]];
    for (int lane = 0; lane < 32; ++lane) warp.values[lane] = taken[lane];
}

u32 exchange_value(Wait wait, u32 x, int source, Place place) {
    Fiber& self = current_fiber();
    self.warp->values[self.lane] = x;
    self.warp->sources[self.lane] = source & 31;
    meet(self, wait, place, exchange_values);
    return self.warp->values[self.lane];
}

}  // namespace

std::array<Int, schedulers> take_products() {
    std::array<Int, schedulers> taken;
    for (int i = 0; i < schedulers; ++i) taken[i] = products[i].exchange(0);
    return taken;
}

void warp_barrier(Place place) {
    Fiber& self = current_fiber();
    Warp& warp = *self.warp;
    long long& tag = warp.tags[warp.phase & 1];
    release(&tag);
    meet(self, Wait::warp_barrier, place, [](Warp& all) { ++all.phase; });
    acquire(&tag);
}

u32 shuffle_bits(u32 x, int lane, Place place) { return exchange_value(Wait::shuffle, x, lane, place); }
u32 shuffle_bits_xor(u32 x, int mask, Place place) {
    return exchange_value(Wait::shuffle_xor, x, current_fiber().lane ^ mask, place);
}

Matrices exchange_matrices(Row row, Place place) {
    Fiber& self = current_fiber();
    self.warp->rows[self.lane] = row;
    meet(self, Wait::matrices, place, hand_out);
    return self.warp->matrices[self.lane];
}

Matrices exchange_matrices_transposed(Row row, Place place) {
    Fiber& self = current_fiber();
    self.warp->rows[self.lane] = row;
    meet(self, Wait::matrices_transposed, place, hand_out_transposed);
    return self.warp->matrices[self.lane];
}

Sums multiply(Sums c, Matrices a, u32 b0, u32 b1, Place place) {
    Fiber& self = current_fiber();
    Warp& warp = *self.warp;
    const int lane = self.lane;
    for (int i = 0; i < 4; ++i) {
        warp.c[i][lane] = c.parts[i];
        warp.a[i][lane] = a.parts[i];
    }
    warp.b[0][lane] = b0;
    warp.b[1][lane] = b1;
    const int scheduler = self.thread / 32 % schedulers;
    meet(self, Wait::multiply, place, [scheduler](Warp& all) {
        multiply_warp(all.a, all.b, all.c);
        products[scheduler].fetch_add(1, std::memory_order_relaxed);
    });
    return {{warp.c[0][lane], warp.c[1][lane], warp.c[2][lane], warp.c[3][lane]}};
}

}  // namespace linattn::emulation
