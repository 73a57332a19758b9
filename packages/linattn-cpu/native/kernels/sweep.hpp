// The sweep of causal attention: consecutive positions in one walk over a state that stays in cache.
//
//   out_t = S^T q_t + sum_{j <= t} (q_t . k_j) v_j        S += sum_t k_t v_t^T
//
// S is the state before the sweep. kSweep positions share one walk over it; among themselves they see each other
// through weights (runs.hpp). S is kept as a total and a rest: the sum of what was added since the total was last
// rounded. Outputs read both. At the end of every run the rest is folded into the total by Kahan's summation. So the
// error does not grow with the length.
//
// With decay, the rest decays in every sweep. The total decays once a run, when the rest is folded into it; until
// then, outputs read it times one number.
//
// Only for one query head per key/value head: other calls are computed in chunks (chunked_forward.hpp).
#pragma once

#include "runs.hpp"
#include "state.hpp"

LINATTN_BEGIN

// The vectors of the state's columns that one sweep takes.
inline constexpr int kPanelVectors = 2;

// How much of the rest remains over a sweep: all of it, most, or less than half. A factor near 1 is applied as
// 1 + lost; see Decay.
enum class Remains { all, most, less };

// Adds what the positions of one sweep see of each other: out_t += sum_{j <= t} weight_tj v_j, over C vectors of columns.
template <class T, int C>
LINATTN_INLINE void add_weighted_values(const SweepRows<T>& x, const T* weights, Vec<T> (&out)[kSweep][C]) {
#pragma GCC unroll 4
    for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
            for (int j = 0; j <= t; ++j) {
                out[t][c] += weights[t * kWeightRow + j] * load<T>(x.value + j * x.value_step + c * W<T>);
            }
        }
    }
}

// The sweep that begins at position `first`, over C vectors of columns; `weights` (kSweep, kWeightRow). A row of the panel
// is the total, then the rest. Without the pragmas the compiler would keep the arrays in memory.
//
// Without decay, weighted values are added first: the processor overlaps this with the sweep before. With decay they are
// added last, because what is read from the state is multiplied first.
template <class T, int C, Remains R, bool Fold>
LINATTN_LOOP void sweep(const SweepRows<T>& x, const T* weights, const RunDecay<T>& decay, int first, T* panel,
                        std::int64_t rows, Ahead& ahead) {
    constexpr bool decays = R != Remains::all;
    Vec<T> out[kSweep][C] = {}, value[kSweep][C];
    const T *query = x.query, *key = x.key;
    const std::int64_t step = x.step;
#pragma GCC unroll 4
    for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            value[t][c] = load<T>(x.value + t * x.value_step + c * W<T>);
            if (decays) value[t][c] *= decay.to_end(first)[t];
        }
    }
    if (!decays) add_weighted_values<T, C>(x, weights, out);
    const T before = decays ? decay.before(first) : T(1);
    const T across = R == Remains::most ? decay.across(first).lost : decay.across(first).factor;
    const T scale = decay.across_run().scale, lost = decay.across_run().lost;
    for (std::int64_t d = 0; d < rows;) {
        ahead.fetch_next();
        const std::int64_t until = ahead.pace() < rows - d ? d + ahead.pace() : rows;
        for (; d < until; ++d, panel += 2 * C * W<T>) {
            Vec<T> total[C], rest[C], sum[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) {
                total[c] = load<T>(panel + c * W<T>);
                rest[c] = load<T>(panel + (C + c) * W<T>);
                keep_in_register(rest[c]);
            }
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) {
                sum[c] = decays ? total[c] * before + rest[c] : total[c] + rest[c];
                if (R == Remains::most) rest[c] += rest[c] * across;
                if (R == Remains::less) rest[c] *= across;
            }
#pragma GCC unroll 4
            for (int t = 0; t < kSweep; ++t) {
                const Vec<T> q = broadcast(query[t * step + d]);
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) out[t][c] += q * sum[c];
                const Vec<T> k = broadcast(key[t * step + d]);
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) rest[c] += k * value[t][c];
            }
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) {
                if (Fold) {
                    if (decays) total[c] *= scale;
                    if (decays) rest[c] += total[c] * lost;
                    const Vec<T> folded = total[c] + rest[c];
                    store<T>(panel + c * W<T>, folded);
                    rest[c] -= folded - total[c];
                }
                store<T>(panel + (C + c) * W<T>, rest[c]);
            }
        }
    }
    if (decays) {
#pragma GCC unroll 4
        for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) out[t][c] *= decay.from_start()[first + t];
        }
        add_weighted_values<T, C>(x, weights, out);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kSweep; ++t) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            if (x.factors != nullptr) out[t][c] *= x.factors[t];
            store<T>(x.out + t * x.out_step + c * W<T>, out[t][c]);
        }
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

    // Computes a section of positions; after the last of a run, the rest is folded into the total.
    void run(const SweepRows<T>& rows, const SweepWeights<T>& weights, const RunDecay<T>& decay, const Section& section,
             Ahead& ahead) const {
        each_panel([&](T* panel, std::int64_t column, auto vectors) {
            constexpr int C = decltype(vectors)::value;
            for (int t = 0; t < section.size; t += kSweep) {
                const int first = section.first + t;
                const bool folds = section.last && t + kSweep == section.size;
                const auto sweep = folds ? sweep_for<C, true>(decay, first) : sweep_for<C, false>(decay, first);
                sweep(rows.at(t, column), weights.at(t), decay, first, panel, rows_, ahead);
            }
        });
    }

    // The steps of all sweeps over `count` positions.
    std::int64_t steps(int count) const {
        std::int64_t panels = 0;
        each_panel([&](T*, std::int64_t, auto) { ++panels; });
        return panels * rows_ * (count / kSweep);
    }
    std::int64_t bytes() const { return 2 * sizeof(T) * rows_ * width_; }

private:
    using Sweep = void (*)(const SweepRows<T>&, const T*, const RunDecay<T>&, int, T*, std::int64_t, Ahead&);

    template <int C, bool Fold>
    static Sweep sweep_for(const RunDecay<T>& decay, int first) {
        if (!decay) return sweep<T, C, Remains::all, Fold>;
        if (decay.across(first).scale == T(1)) return sweep<T, C, Remains::most, Fold>;
        return sweep<T, C, Remains::less, Fold>;
    }

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
