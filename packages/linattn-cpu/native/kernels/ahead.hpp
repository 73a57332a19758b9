// Prefetches rows during sweeps over the state, before they are read or written.
//
// Sweeps leave the memory idle, and loading rows leaves the arithmetic idle. If sweeps prefetched many rows at once, the
// buffers for cache misses would be full, and the sweeps would wait for their own rows. So they prefetch one row after
// the other, spread over all their steps.
#pragma once

#include "chunks.hpp"

LINATTN_BEGIN

class Ahead {
public:
    // The rows first .. first + count of a tensor or of a result, if there is one.
    void add(const Rows& rows, std::int64_t first, int count, std::int64_t dim) {
        const std::int64_t size = bytes_of(rows.dtype);
        if (rows.column != 1 || count <= 0) return;
        streams_[streams_in_use_++] = {rows.at(first), rows.row * size, dim * size};
        rows_ += count;
    }
    void add(const OutRows& out, std::int64_t first, int count) {
        if (out.data != nullptr) add(out, first, count, out.width);
    }

    // Spreads the prefetches of all rows over so many steps: one at the start of each sweep, then one every pace() steps.
    void spread_over(std::int64_t steps) { pace_ = rows_ == 0 ? steps + 1 : rows_ < steps ? steps / rows_ : 1; }
    std::int64_t pace() const { return pace_; }

    // The tensors take turns. One with fewer rows than others is prefetched past its end, which does no harm; the last rows
    // of the others are not prefetched.
    __attribute__((always_inline)) void fetch_next() {
        if (rows_ == 0) return;
        Stream& stream = streams_[turn_];
        prefetch(stream.next, stream.bytes);
        stream.next += stream.step;
        turn_ = turn_ + 1 == streams_in_use_ ? 0 : turn_ + 1;
        --rows_;
    }

private:
    struct Stream {
        const char* next;
        std::int64_t step, bytes;
    };
    Stream streams_[6];  // a pass reads and writes at most six tensors
    int streams_in_use_ = 0, turn_ = 0;
    std::int64_t rows_ = 0, pace_ = 1;
};

LINATTN_END
