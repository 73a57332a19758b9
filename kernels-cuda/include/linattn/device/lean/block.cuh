// One block of the lean product: chunk by chunk, the next one under way.
#pragma once

#include "linattn/device/lean/rows.cuh"

namespace linattn {

template <class Shape>
class LeanBlock {
    static constexpr int D = Shape::D, C = Shape::C, stages = Shape::stages, threads = Shape::threads;
    static constexpr int result_tiles = Shape::columns / 16;
    static constexpr bool reads = Shape::reads, sums = Shape::sums;
    using Memory = LeanMemory<Shape>;
    using Keys = typename LeanState<Shape>::Keys;

public:
    LINATTN_DEVICE LeanBlock(const Product& call, unsigned char* shared) : LeanBlock(call, shared, warp_of_thread()) {}

    LINATTN_DEVICE void run() { run(*this); }

    // The steps of a chunk. `fetch` starts to load its numbers when its copy starts. When the copy is complete, each thread
    // prepares what it has copied. After a barrier, `compute` multiplies.
    LINATTN_DEVICE void fetch(int) {}
    LINATTN_DEVICE void prepare(int stage, int i) {
        if (sums) prepare_keys(stage, i);
    }
    LINATTN_DEVICE void compute(int stage, int i) {
        if constexpr (reads) {
            compute_rows(stage, i);
            LINATTN_BLOCK_BARRIER();  // all warps are done with the state before this chunk
            if constexpr (sums) state_.publish(memory_);
            store(call_.result, stage, i);
        } else {
            Keys keys;
            load_keys(keys, stage);
            add_keys<0>(state_, keys, stage);
            state_.add_vector(keys);
        }
    }

protected:
    template <class Block>
    LINATTN_DEVICE void run(Block& block) {
        {
            const Work work = work_of_block();
            begin(work);
            const bool begins = !Shape::gradients || work.begins_with(call_, call_.start);
            state_.load(call_.start, begins ? work.matrix(call_, call_.start) : nullptr,
                        begins ? work.vector(call_, call_.start) : nullptr);
        }
        if (reads) state_.publish(memory_);
        walk(block);
        if (!sums) return;
        // Found again rather than kept, for registers are scarce.
        const Work work = work_of_block();
        if (!work.writes(call_, call_.last)) return;
        state_.store(call_.last, work.matrix(call_, call_.last), work.vector(call_, call_.last));
    }

    LINATTN_DEVICE LeanBlock(const Product& call, unsigned char* shared, int warp)
        : call_(call), row_(first_row(call, warp)), memory_(shared, warp, row_) {}

    // Where the rows of a warp begin. Of the two warps of a scheduler, one has the rows that see few keys where the other
    // has those that see many.
    LINATTN_DEVICE static int first_row(const Product& call, int warp) {
        constexpr int groups = Shape::row_groups;
        const int group = (warp + rotation(call, groups)) % groups;
        return (warp < groups ? group : groups - 1 - group) * 16;
    }
    LINATTN_DEVICE static int first_column() { return Shape::first_column(thread_index() / 32); }

    LINATTN_DEVICE Work work_of_block() const {
        return linattn::work_of_block(call_, D, reads ? 0 : call_.first_segment);
    }

    // Finds the positions of this block and where its operands begin.
    LINATTN_DEVICE void begin(const Work& work) {
        const int positions = reads || Shape::gradients ? work.place.rows : work.place.keys;
        const Int per_segment = positions_of_segment(positions, call_.segments);
        const int first = static_cast<int>(clamp(per_segment * work.segment, 0, positions));
        rows_ = static_cast<int>(clamp(per_segment, 0, positions - first));
        keys_ = sums && Shape::walk != Walk::query_sums
                    ? static_cast<int>(clamp(work.place.live_keys - first, 0, rows_))
                    : rows_;
        first_query_ = work.first_query + first;
        // Where the first chunk begins.
        const int at = first + chunk(0) * C;
        if (reads) query_ = start_of(call_.row, work.place, at);
        if (sums) {
            key_ = start_of(call_.key, work.place, at);
            value_ = start_of(call_.value, work.place, at);
        }
        if (Shape::pair) second_ = start_of(call_.second_row, work.place, at);
        if (Shape::of_queries) {
            second_ = start_of(call_.origin, work.place, at);
            if (call_.normalize) third_ = start_of(call_.output, work.place, at);
        }
    }

    // The chunk that comes i-th: where time runs backwards, the last comes first.
    LINATTN_DEVICE int chunk(int i) const { return Shape::backwards ? (rows_ + C - 1) / C - 1 - i : i; }

    // Broadcast from one lane, so that the compiler knows that it is the same in all lanes of a warp.
    LINATTN_DEVICE static int warp_of_thread() {
        return static_cast<int>(shuffle(static_cast<u32>(thread_index() / 32), 0));
    }

    template <class Block>
    LINATTN_DEVICE void walk(Block& block) {
        LINATTN_UNROLL
        for (int i = 0; i < stages - 1; ++i) copy(block, chunk(i), i);
        int stage = 0, free = stages - 1;
        for (int i = 0; i * C < rows_; ++i) {
            copies_wait<stages - 2>();
            block.prepare(stage, chunk(i));
            LINATTN_BLOCK_BARRIER();  // the chunk is there, its keys are features; the chunk before it is done with
            copy(block, chunk(i + stages - 1), free);
            block.compute(stage, chunk(i));
            free = stage;
            stage = stage == stages - 1 ? 0 : stage + 1;
        }
    }

    LINATTN_DEVICE const unsigned char* start_of(const Operand& operand, const Place& place, int first) const {
        return address(operand, place, first, 0) + of_thread(operand.tensor.position * 2);
    }

    // Whether all rows and keys of the i-th chunk are there; how many of its rows are below `length`.
    LINATTN_DEVICE bool is_whole(int i) const { return i * C + C <= keys_; }
    LINATTN_DEVICE static int rows_below(int length, int i) { return static_cast<int>(clamp(length - i * C, 0, C)); }

    // Starts copying the i-th chunk, if there is one.
    template <class Block>
    LINATTN_DEVICE void copy(Block& block, int i, int stage) {
        if (!Shape::backwards || i >= 0) {
            if (is_whole(i)) copy_chunk<true>(stage, C, C);
            else if (i * C < rows_) copy_chunk<false>(stage, rows_below(rows_, i), rows_below(keys_, i));
            block.fetch(i);
        }
        copies_commit();
    }

    // In a pair, the rows are those of keys, and keys and values those of queries.
    template <bool whole>
    LINATTN_DEVICE void copy_chunk(int stage, int queries, int keys) {
        const int rows = Shape::pair ? keys : queries, live = Shape::pair ? queries : keys;
        if (reads) copy_rows<whole>(0, stage, call_.row, query_, rows);
        if (sums) {
            copy_rows<whole>(Shape::key, stage, call_.key, key_, live);
            copy_rows<whole>(Shape::value, stage, call_.value, value_, live);
        }
        if (Shape::pair) copy_rows<whole>(Shape::second, stage, call_.second_row, second_, rows);
        if (Shape::of_queries) {
            copy_rows<whole>(Shape::second, stage, call_.origin, second_, rows);
            if (call_.normalize) copy_rows<whole>(Shape::third, stage, call_.output, third_, rows);
        }
    }

    // Copies the next rows of an operand, and goes on to those after them.
    template <bool whole>
    LINATTN_DEVICE void copy_rows(int tile, int stage, const Operand& operand, const unsigned char*& next,
                                  int count) const {
        const Int stride = operand.tensor.position * 2;
        if (whole) {
            using Threads = Sharing<C, D / 8, threads>;
            LINATTN_UNROLL
            for (int pass = 0; pass < Threads::passes; ++pass) {
                copy16(memory_.copied(tile, stage, pass * Threads::at_once), next, 16);
                next += stride * Threads::at_once;
            }
        } else {
            const Staged staged = {memory_.tile(tile, stage), Shape::pitch};
            const unsigned char* const first = next - of_thread(stride);
            stage_vectors<false, C, D, threads, 2>(staged, first, stride, D, count);
            next += C * stride;
        }
        if (Shape::backwards) next -= 2 * C * stride;
    }

    // Where the rows and the 16 bytes of them begin that this thread copies.
    LINATTN_DEVICE static Int of_thread(Int stride) {
        const Sharing<C, D / 8, threads> of;
        return of.row * stride + of.at * 16;
    }

    // Turns the keys that this thread has copied into features, which are zero where there is no key.
    LINATTN_DEVICE void prepare_keys(int stage, int i) const {
        constexpr int tile = Shape::of_queries ? Shape::value : Shape::key;
        if constexpr (Shape::map != FeatureMap::identity) {
            change_copied<tile>(stage, [](u32 pair, int) { return features_of<Shape::map>(pair); });
            if (!is_whole(i)) clear_copied<tile>(stage, rows_below(keys_, i));
        }
    }

    // Calls `change(pair, pass)` for all that this thread has copied to a tile.
    template <int tile, class Change>
    LINATTN_DEVICE void change_copied(int stage, const Change& change) const {
        using Threads = Sharing<C, D / 8, threads>;
        LINATTN_UNROLL
        for (int pass = 0; pass < Threads::passes; ++pass) {
            Quad* const eight = memory_.copied(tile, stage, pass * Threads::at_once);
            Quad x = *eight;
            LINATTN_UNROLL
            for (int j = 0; j < 4; ++j) x.words[j] = change(x.words[j], pass);
            *eight = x;
        }
    }

    // Sets the rows from `live` on to zero, in what this thread has copied.
    template <int tile>
    LINATTN_DEVICE void clear_copied(int stage, int live) const {
        using Threads = Sharing<C, D / 8, threads>;
        const int first = Threads().row;
        for (int row = 0; row < C; row += Threads::at_once) {
            if (first + row >= live) *memory_.copied(tile, stage, row) = Quad{{0, 0, 0, 0}};
        }
    }

    LINATTN_DEVICE void compute_rows(int stage, int i) {
        LeanRows<Shape> rows(memory_, stage);
        if (Shape::column_groups > 1) LINATTN_BLOCK_BARRIER();  // other warps have these rows, where results are left
        if constexpr (sums) rows.find_scores(row_ / 16);
        float factors[2];
        rows.sum_weights(factors);
        find_factors(factors, rows, i);
        Keys keys;
        if constexpr (sums) load_keys(keys, stage);
        LINATTN_UNROLL
        for (int n = 0; n < result_tiles; ++n) {
            float out[2][4] = {};
            rows.add_state(out, n);
            if constexpr (sums) {
                float sum[2][4] = {};
                LINATTN_UNROLL
                for (int k = 0; k < C / 16; ++k) {
                    const RightFragment<1> values = memory_.values(stage, k, n);
                    if (k * 16 <= row_) rows.add_values(out, values, k);
                    multiply<1>(sum[0], keys[k], values, 0);
                    multiply<1>(sum[1], keys[k], values, 1);
                }
                state_.add(n, sum);
            }
            leave(stage, out, factors, n);
        }
        if constexpr (sums) {
            add_keys<result_tiles>(state_, keys, stage);
            state_.add_vector(keys);
        }
    }

    // Adds the keys to a state's columns from the `first` 16 on.
    template <int first, int tile = Shape::value>
    LINATTN_DEVICE void add_keys(LeanState<Shape>& state, const Keys& keys, int stage) const {
        LINATTN_UNROLL
        for (int n = first; n < D / 16; ++n) {
            float sum[2][4] = {};
            LINATTN_UNROLL
            for (int k = 0; k < C / 16; ++k) {
                const RightFragment<1> values = memory_.template values<tile>(stage, k, n);
                multiply<1>(sum[0], keys[k], values, 0);
                multiply<1>(sum[1], keys[k], values, 1);
            }
            state.add(n, sum);
        }
    }

    // Turns the sums of the weights of two rows into what their results are multiplied with; writes the normalizers.
    LINATTN_DEVICE void find_factors(float (&sums_of_weights)[2], LeanRows<Shape>& rows, int i) const {
        const int lane = thread_index() % 32, position = i * C + row_ + lane / 4;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            float n = sums_of_weights[half] + call_.eps;
            if (lane % 4 == 0 && first_column() == 0 && position + half * 8 < rows_) {
                call_.out_normalizer[first_query_ + position + half * 8] = n;
            }
            const float size = n < 0.0f ? -n : n;
            if (call_.normalize && !(size > 1e-30f && size < 1e30f)) {
                // The inverse would overflow or lose bits. A factor that is a power of two does not change the quotient.
                const float scale = size < 1.0f ? 0x1p100f : 0x1p-100f;
                rows.scale(half, scale);
                n *= scale;
            }
            sums_of_weights[half] = call_.normalize ? fast_inverse(n) : 1.0f;
        }
    }

    // Leaves two tiles of columns of the results where the rows were.
    LINATTN_DEVICE void leave(int stage, const float (&out)[2][4], const float (&factors)[2], int n) const {
        float scaled[2][4];
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) scaled[i / 4][i % 4] = out[i / 4][i % 4] * factors[i % 4 / 2];
        memory_.leave(stage, n, scaled);
    }

    template <int tile = Shape::key>
    LINATTN_DEVICE void load_keys(Keys& keys, int stage) const {
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) keys[k] = memory_.template key_columns<tile>(stage, k);
    }

    // Writes the results of this warp's rows to global memory; those of keys that do not exist are zero.
    template <int tile = 0>
    LINATTN_DEVICE void store(const Result& result, int stage, int i) const {
        const int lane = thread_index() % 32, row = row_ + lane / 8, position = i * C + row;
        const Int at = (first_query_ + position) * (D / 8) + first_column() / 8 + lane % 8;
        Quad* target = static_cast<Quad*>(result.data) + at;
        if (is_whole(i)) {
            LINATTN_UNROLL
            for (int j = 0; j < 16; j += 4) target[j * (D / 8)] = *memory_.template result<tile>(stage, j);
            return;
        }
        for (int j = 0; j < 16 && position + j < rows_; j += 4) {
            const bool lives = !Shape::pair || position + j < keys_;
            target[j * (D / 8)] = lives ? *memory_.template result<tile>(stage, j) : Quad{{0, 0, 0, 0}};
        }
    }

    const Product& call_;
    int row_;  // where this warp's rows of each chunk begin
    Memory memory_;
    LeanState<Shape> state_;
    int rows_, keys_;  // of the segment: positions, of which so many have keys
    Int first_query_;  // where its numbers of queries begin in an array (B, H, N)
    const unsigned char *query_, *key_, *value_, *second_, *third_;  // the rows that are copied next
};

}  // namespace linattn
