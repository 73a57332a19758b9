// Runs of causal positions: what the sweeps over a state (sweep.hpp) read besides it.
//
// The positions of one sweep see each other through weights, q_t . k_j for j <= t, and everything before the sweep
// through the state; passes over gradients put other rows in the places of q and k. Decay multiplies the weights, what
// is read from the state, what is added to it, and the state. No factor exceeds 1; see decay.hpp.
#pragma once

#include "decay.hpp"

LINATTN_BEGIN

// The positions of one walk over the state: their outputs and values stay in registers. Without fused multiply-adds
// and broadcasts from memory, two positions leave registers for intermediate results.
inline constexpr int kSweep = kRegisters == 32 ? 4 : kVectorBytes == 32 ? 3 : 2;
// The numbers of a row of weights: one for each position of the sweep, rounded up to a power of two.
inline constexpr int kWeightRow = kSweep == 3 ? 4 : kSweep;
// The positions of one run. In a longer run the state moves to the first-level cache less often; the sum of a run is
// small compared with the total of a long sequence, and so is its rounding.
inline constexpr int kRun = kSweep == 4 ? 64 : 60;
// The rows of scratch for a run: a multiple of kChunk, because rows are summed kChunk at a time.
inline constexpr int kRunRows = 64;

// The number of positions whose rows are in scratch together. Every section of a run walks over the whole state. So a
// section is small enough that the state and the rows of the section fit in the first-level cache together; `row` counts
// the bytes of one position in scratch and in the tensors. If even the smallest section does not fit, it is the whole run.
// So it is with a small state: loading it into the cache again takes less time than starting more sections.
LINATTN_INLINE int section_for(std::int64_t state, std::int64_t row) {
    int section = kRun;
    if (state <= first_level_cache() / 4) return section;
    while (state + section * row > first_level_cache() && section % (2 * kSweep) == 0) section /= 2;
    return state + section * row > first_level_cache() ? kRun : section;
}

// Positions of a run: from its position `first` on, `size` of them, a multiple of kSweep; `last` if the run ends there.
struct Section {
    int first, size;
    bool last;
};

// `count` rounded up to whole sweeps; positions past the last one have rows of zeros.
LINATTN_INLINE int sweeps_for(int count) { return static_cast<int>(round_up(count, kSweep)); }

// Calls work(section) for all positions of a run of `count`.
template <class Work>
LINATTN_INLINE void each_section(int count, int size, const Work& work) {
    count = sweeps_for(count);
    for (int first = 0; first < count; first += size) {
        const int end = first + size < count ? first + size : count;
        work(Section{first, end - first, end == count});
    }
}

// Rows of a run, starting at its first position; a step (negative when walking backwards) is the distance from one
// position to the next.
template <class T>
struct SweepRows {
    const T *query, *key;  // (positions, D)
    std::int64_t step;
    const T* value;  // (positions, M)
    std::int64_t value_step;
    T* out;  // (positions, M)
    std::int64_t out_step;
    const T* factors = nullptr;  // (positions): the outputs are multiplied by them, if there are any

    SweepRows at(std::int64_t position, std::int64_t column) const {
        return {query + position * step,
                key + position * step,
                step,
                value + position * value_step + column,
                value_step,
                out + position * out_step + column,
                out_step,
                factors == nullptr ? nullptr : factors + position};
    }
    // The same rows without their factors, from the last one of `count` to the first.
    SweepRows backwards(std::int64_t count) const {
        SweepRows rows = at(count - 1, 0);
        return {rows.query, rows.key, -step, rows.value, -value_step, rows.out, -out_step};
    }
};

// The factors of one run, by its positions in the order of the pass. Without decay nothing is multiplied.
template <class T>
class RunDecay {
public:
    RunDecay(Arena& arena, const Attention& call)
        : decays_(call.log_decay != nullptr),
          from_start_(arena.take<T>(kRunRows)),
          between_(arena.take<T>(kRunRows * kWeightRow)),
          before_(arena.take<T>(kRunRows)) {}

    explicit operator bool() const { return decays_; }
    // For each position, exp of the sum of g in its sweep up to and including it: the decay of what is older.
    const T* from_start() const { return from_start_; }
    // The decay from each position of the sweep that begins at `first` to its end.
    const T* to_end(int first) const { return between_ + (first + kSweep - 1) * kWeightRow; }
    // The decay from the start of the run to the sweep that begins at `first`.
    T before(int first) const { return before_[first / kSweep]; }
    // The decay over the sweep that begins at `first`.
    const Decay<T>& across(int first) const { return across_[first / kSweep]; }
    // The decay over the whole run.
    const Decay<T>& across_run() const { return across_run_; }

    // For a pass from the first of `count` positions, a multiple of kSweep, to the last.
    void load_forwards(const Inputs<T>& inputs, std::int64_t first, int count) {
        if (!decays_) return;
        T logs[kRunRows];
        inputs.log_decays(first, count, logs);
        load_from(logs, 1, count);
    }
    // For a pass from the last position to the first: what is older than position j is later, and decays at j + 1.
    void load_backwards(const Inputs<T>& inputs, std::int64_t first, int count) {
        if (!decays_) return;
        T logs[kRunRows];
        inputs.log_decays(first + 1, count, logs);
        load_from(logs + count - 1, -1, count);
    }

    // Weights (positions of the section, kWeightRow) *= exp of the sum of g over j < m <= t.
    void within(T* weights, const Section& section) const {
        const T* factors = between_ + section.first * kWeightRow;
        if (decays_) multiply_into<T>(factors, round_up(section.size * kWeightRow, W<T>), weights);
    }

private:
    void load_from(const T* logs, int turn, int count) {
        double passed = 0;
        for (int first = 0; first < count; first += kSweep) {
            before_[first / kSweep] = static_cast<T>(passed);
            const double sum = load_sweep(logs + first * turn, turn, first);
            across_[first / kSweep] = Decay<T>::by(sum);
            passed += sum;
        }
        across_run_ = Decay<T>::by(passed);
        fill_up(before_, count / kSweep);
        fill_up(from_start_, count);
        fill_up(between_, count * kWeightRow);
    }

    // Sums logarithms within one sweep; returns the sum of all.
    double load_sweep(const T* logs, int turn, int first) {
        T *at = between_ + first * kWeightRow, *to = from_start_ + first;
        T sums[kWeightRow];
        double sum = 0;
#pragma GCC unroll 4
        for (int t = 0; t < kSweep; ++t) {
            const T log = logs[t * turn];
            to[t] = static_cast<T>(sum += log);
#pragma GCC unroll 4
            for (int j = 0; j < kWeightRow; ++j) at[t * kWeightRow + j] = sums[j] = j < t ? sums[j] + log : T(0);
        }
        return sum;
    }

    // Pads the logarithms to whole vectors and replaces them by their exponentials.
    static void fill_up(T* x, int count) {
        const int size = static_cast<int>(round_up(count, kChunk));
        std::memset(x + count, 0, sizeof(T) * (size - count));
        exponentiate<T>(size, x);
    }

    const bool decays_;
    T *const from_start_, *const between_, *const before_;
    Decay<T> across_[kRunRows / kSweep], across_run_;
};

// z before the sweep that begins at `first`: the total before its run, decayed, plus the rest, `inside`. Then the rest
// decays to the end of the sweep.
template <class T, bool Decays>
LINATTN_INLINE Vec<T> z_before_sweep(Vec<T> before, const RunDecay<T>& decay, int first, Vec<T>& inside) {
    if constexpr (!Decays) return before + inside;
    const Vec<T> sum = before * decay.before(first) + inside;
    const Decay<T>& across = decay.across(first);
    inside = inside * across.scale + inside * across.lost;
    return sum;
}

// Ends a section: z is kept as S is, a total and a rest, which is folded into the total at the end of the run.
template <class T, bool Decays>
LINATTN_INLINE void store_z(Vec<T> before, Vec<T> inside, const Decay<T>& across_run, bool last, T* z, T* rest) {
    if (!last) return store<T>(rest, inside);
    if (Decays) before *= across_run.scale, inside += before * across_run.lost;
    const Vec<T> folded = before + inside;
    store<T>(z, folded);
    store<T>(rest, inside - (folded - before));
}

// weights (positions, kWeightRow) = the products of query t and key j of one sweep for j <= t, else 0. The lanes of all
// products of a sweep are summed together. The last store of a sweep may write zeros into the rows of the next one.
template <class T>
LINATTN_LOOP void weigh_sweeps(const SweepRows<T>& x, std::int64_t width, int count, T* weights) {
    constexpr int blocks = (kSweep * kWeightRow + W<T> - 1) / W<T>;
    for (int first = 0; first < count; first += kSweep) {
        const T *query = x.query + first * x.step, *key = x.key + first * x.step;
        Vec<T> products[blocks][W<T>] = {};
        for (std::int64_t d = 0; d < width; d += W<T>) {
            Vec<T> keys[kSweep];
#pragma GCC unroll 4
            for (int j = 0; j < kSweep; ++j) keys[j] = load<T>(key + j * x.step + d);
#pragma GCC unroll 4
            for (int t = 0; t < kSweep; ++t) {
                const Vec<T> q = load<T>(query + t * x.step + d);
#pragma GCC unroll 4
                for (int j = 0; j <= t; ++j) {
                    const int at = t * kWeightRow + j;
                    products[at / W<T>][at % W<T>] += q * keys[j];
                }
            }
        }
#pragma GCC unroll 8
        for (int block = 0; block < blocks; ++block) {
            store<T>(weights + first * kWeightRow + block * W<T>, sum_block<T>(products[block]));
        }
    }
}

// The weights between the positions of every sweep of a run: row t has those of position t with its sweep's positions
// j <= t, then zeros.
template <class T>
class SweepWeights {
public:
    explicit SweepWeights(Arena& arena) : weights_(arena.take<T>(kRunRows * kWeightRow)) {}

    // The products of queries and keys, which are `width` numbers wide.
    void load_from(const SweepRows<T>& rows, std::int64_t width, int count) const {
        weigh_sweeps<T>(rows, width, count, weights_);
    }

    // Adds the products of one number of every query and one of every key; consecutive numbers are `turn` apart.
    void add(const T* queries, const T* keys, int turn, int count) const {
        T* row = weights_;
        for (int first = 0; first < count; first += kSweep, queries += kSweep * turn, keys += kSweep * turn) {
#pragma GCC unroll 4
            for (int t = 0; t < kSweep; ++t, row += kWeightRow) {
#pragma GCC unroll 4
                for (int j = 0; j <= t; ++j) row[j] += queries[t * turn] * keys[j * turn];
            }
        }
    }

    void decay_by(const RunDecay<T>& decay, const Section& section) const { decay.within(weights_, section); }

    const T* at(int position) const { return weights_ + position * kWeightRow; }

private:
    T* const weights_;  // (kRunRows, kWeightRow)
};

LINATTN_END
