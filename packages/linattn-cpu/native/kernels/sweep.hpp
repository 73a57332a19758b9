// The sweep of causal attention: consecutive positions in one walk over a state that stays in cache.
//
//   S_t = S_{t-1} + k_t v_t^T    out_t = S_t^T q_t
//
// kSweep positions share one walk over S, which is kept as a total and a rest: the sum of what was added since the
// total was last rounded. Outputs read both. At the end of every run the rest is folded into the total by Kahan's
// summation. So the error does not grow with the length. The extra additions cost nothing on machines where they do not
// compete with the products.
//
// Only for one query head per key/value head and without decay: other calls are computed in chunks
// (chunked_forward.hpp).
#pragma once

#include "inputs.hpp"
#include "state.hpp"

LINATTN_BEGIN

// The positions of one walk over the state: their outputs and values stay in registers. Without fused multiply-adds
// and broadcasts from memory, two positions leave registers for intermediate results.
inline constexpr int kSweep = kRegisters == 32 ? 4 : kVectorBytes == 32 ? 3 : 2;
// The positions of one run. In a longer run the state moves to the first-level cache less often; the sum of a run is
// small compared with the total of a long sequence, and so is its rounding.
inline constexpr int kRun = kSweep == 4 ? 64 : 60;
// The rows of scratch for a run: a multiple of kChunk, because rows are summed kChunk at a time.
inline constexpr int kRunRows = 64;
// The vectors of the state's columns that one sweep takes.
inline constexpr int kPanelVectors = 2;

// `count` rounded up to whole sweeps; positions past the last one have rows of zeros.
LINATTN_INLINE int sweeps_for(int count) { return static_cast<int>(round_up(count, kSweep)); }

// The rows of a sweep, starting at its first position; `step` (negative when walking backwards) is the distance from
// one position to the next.
template <class T>
struct SweepRows {
    const T *query, *key;  // (positions, D)
    std::int64_t step;
    const T* value;  // (positions, M)
    T* out;          // (positions, M)
    std::int64_t value_step;

    SweepRows at(std::int64_t position, std::int64_t column) const {
        return {query + position * step,
                key + position * step,
                step,
                value + position * value_step + column,
                out + position * value_step + column,
                value_step};
    }
    SweepRows backwards(std::int64_t count) const {
        SweepRows rows = at(count - 1, 0);
        rows.step = -step;
        rows.value_step = -value_step;
        return rows;
    }
};

// One sweep over C vectors of columns. A row of the panel is the total, then the rest. Without the pragmas the compiler
// would keep the arrays in memory.
template <class T, int C, bool Fold>
LINATTN_LOOP void sweep(const SweepRows<T>& x, T* panel, std::int64_t rows) {
    Vec<T> out[kSweep][C] = {}, value[kSweep][C];
    const T *query = x.query, *key = x.key;
    const std::int64_t step = x.step;
#pragma GCC unroll 4
    for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) value[t][c] = load<T>(x.value + t * x.value_step + c * W<T>);
    }
    for (std::int64_t d = 0; d < rows; ++d, panel += 2 * C * W<T>) {
        Vec<T> total[C], rest[C], sum[C];
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            total[c] = load<T>(panel + c * W<T>);
            rest[c] = load<T>(panel + (C + c) * W<T>);
        }
#pragma GCC unroll 4
        for (int t = 0; t < kSweep; ++t) {
            const Vec<T> k = broadcast(key[t * step + d]);
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) rest[c] += k * value[t][c];
            const Vec<T> q = broadcast(query[t * step + d]);
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) {
                sum[c] = total[c] + rest[c];
                out[t][c] += q * sum[c];
            }
        }
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            if (Fold) {
                store<T>(panel + c * W<T>, sum[c]);
                rest[c] -= sum[c] - total[c];
            }
            store<T>(panel + (C + c) * W<T>, rest[c]);
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) store<T>(x.out + t * x.value_step + c * W<T>, out[t][c]);
    }
}

// A state in the order in which sweeps read it: one panel of columns after the other.
template <class T>
class Panels {
public:
    Panels(Arena& arena, std::int64_t rows, std::int64_t columns)
        : rows_(rows), width_(padded<T>(columns)), data_(arena.take<T>(2 * rows * width_)) {}

    void load_from(const Matrix<T>& matrix) const {
        each_row([&](T* row, std::int64_t at, std::int64_t columns) {
            std::memcpy(row, matrix.sum + at, sizeof(T) * columns);
            std::memcpy(row + columns, matrix.compensation + at, sizeof(T) * columns);
        });
    }

    void save_to(const Matrix<T>& matrix) const {
        each_row([&](const T* row, std::int64_t at, std::int64_t columns) {
            std::memcpy(matrix.sum + at, row, sizeof(T) * columns);
            std::memcpy(matrix.compensation + at, row + columns, sizeof(T) * columns);
        });
    }

    // Computes `count` positions, a multiple of kSweep; at the end the rest is folded into the total.
    void run(const SweepRows<T>& rows, int count) const {
        each_panel([&](T* panel, std::int64_t column, auto vectors) {
            constexpr int C = decltype(vectors)::value;
            for (int t = 0; t + kSweep < count; t += kSweep) sweep<T, C, false>(rows.at(t, column), panel, rows_);
            sweep<T, C, true>(rows.at(count - kSweep, column), panel, rows_);
        });
    }

private:
    // Calls work(panel, its first column, its vectors).
    template <class Work>
    void each_panel(const Work& work) const {
        by_vectors<T, kPanelVectors>(
            width_, [&](auto vectors, std::int64_t column) { work(data_ + 2 * rows_ * column, column, vectors); });
    }

    // Calls work(row of a panel, its place in a padded matrix, its columns).
    template <class Work>
    void each_row(const Work& work) const {
        each_panel([&](T* panel, std::int64_t column, auto vectors) {
            const std::int64_t columns = decltype(vectors)::value * W<T>;
            for (std::int64_t d = 0; d < rows_; ++d) work(panel + 2 * d * columns, d * width_ + column, columns);
        });
    }

    const std::int64_t rows_, width_;
    T* const data_;
};

LINATTN_END
