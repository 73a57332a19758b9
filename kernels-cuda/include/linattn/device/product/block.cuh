// One block of the product: chunk by chunk; the next chunk's rows are copied while this one's are multiplied.
//
// The segments of a sequence begin with states that an earlier launch wrote, or they pass states on themselves. In such
// a relay each block sums its own keys, waits for the state before them, writes the state after them, and then computes
// its rows, reading keys and values again while the cache still holds them. Blocks draw tickets when they start, so
// that a block only waits for one that has started before it.
#pragma once

#include "linattn/device/product/rows.cuh"

namespace linattn {

template <class Shape>
class ProductBlock : protected ProductRows<Shape> {
    using Rows = ProductRows<Shape>;
    static constexpr int parts = Shape::parts, A = Shape::A, E = Shape::E, C = Shape::C, threads = Shape::threads;

    using Rows::call_, Rows::memory_, Rows::work_;

public:
    LINATTN_DEVICE ProductBlock(const Product& call, unsigned char* shared) : Rows(call, shared) {
        Int index = block_x(), turn = block_y();
        if (is_relay()) {
            const Int blocks = call.sequences * call.heads * call.slices;
            const Int ticket = take_turn();
            index = ticket % blocks;
            turn = ticket / blocks;
        }
        work_.segment = static_cast<int>(turn);
        work_.column = index % call.slices * E;
        work_.sequence = index / call.slices / call.heads;
        work_.place = place_of(call, work_.sequence, index / call.slices % call.heads);
        const Int positions = positions_to_walk();
        const Int per_segment = positions_of_segment(positions, call.segments);
        const Int segment = call.backwards && is_relay() ? call.segments - 1 - turn : turn;
        first_ = clamp(per_segment * segment, 0, positions);
        const Int end = clamp(first_ + per_segment, first_, positions);
        chunks_ = (end - first_ + C - 1) / C;
    }

    LINATTN_DEVICE void run() {
        // Values of width 0 have no matrix, but a vector.
        const bool keeps =
            (call_.last.matrix != nullptr || call_.last.vector != nullptr) && work_.writes(call_, call_.last);
        this->load_state(is_relay() ? StateView{} : call_.start);
        // In a relay the first pass sums the keys only. A loop, so that the code of a pass is compiled once.
        LINATTN_UNROLL_NONE
        for (int pass = is_relay() ? 0 : 1; pass < 2; ++pass) {
            walk(pass == 1 && call_.reads, call_.sums, pass == 0 || (keeps && !is_relay()));
            if (pass == 0) pass_state();
        }
        if (keeps && !is_relay()) this->store_state(call_.last);
    }

private:
    LINATTN_DEVICE bool is_relay() const { return Shape::relays && call_.relay.tickets != nullptr; }

    // The number of this block in the order in which blocks began.
    LINATTN_DEVICE Int take_turn() {
        int* ticket = reinterpret_cast<int*>(memory_.shared);
        if (thread_index() == 0) *ticket = next_ticket(call_.relay.tickets);
        LINATTN_BLOCK_BARRIER();
        const Int mine = *ticket;
        LINATTN_BLOCK_BARRIER();  // from here on the tiles may use the memory
        return mine;
    }

    // Backwards in time, queries and their gradients are added.
    LINATTN_DEVICE Int positions_to_walk() const {
        const bool of_queries = call_.reads ? !call_.rows_are_keys : !call_.key.of_keys && !call_.value.of_keys;
        return of_queries ? work_.place.rows : work_.place.keys;
    }
    LINATTN_DEVICE Int live_of(const Operand& operand) const {
        return operand.of_keys ? work_.place.live_keys : work_.place.rows;
    }

    // The position at which the i-th chunk of this segment begins, and how many of its rows are below `length`.
    LINATTN_DEVICE Int chunk(Int i) const { return first_ + (call_.backwards ? chunks_ - 1 - i : i) * C; }
    LINATTN_DEVICE int rows_below(Int length, Int position) const {
        return static_cast<int>(clamp(length - position, 0, C));
    }

    // Goes through the chunks. `reads`: rows are computed; `sums`: keys are added to the state, those of the last chunk
    // too where `keeps`.
    LINATTN_DEVICE void walk(bool reads, bool sums, bool keeps) {
        if (chunks_ > 0) copy(0, memory_.buffer, reads, sums);
        if (reads && !sums) this->publish_state();
        for (Int i = 0; i < chunks_; ++i) {
            copies_wait<0>();
            LINATTN_BLOCK_BARRIER();  // the chunk has arrived, and all threads are done with the last one's tiles
            if (sums && i > 0) this->add_vector();
            if (reads && sums) this->publish_state();
            prepare_tiles(chunk(i), reads, sums);
            LINATTN_BLOCK_BARRIER();  // the tiles are complete; what was staged is free
            if (i + 1 < chunks_) copy(i + 1, memory_.other_buffer(), reads, sums);
            if (sums) this->sum_vector();
            if (reads) this->read_rows(chunk(i), sums, static_cast<int>(i % 2));
            if (sums && (keeps || i + 1 < chunks_)) this->add_keys();
            memory_.buffer = memory_.other_buffer();
        }
        LINATTN_BLOCK_BARRIER();
        if (sums && keeps && chunks_ > 0) this->add_vector();
    }

    // Waits for the state before this segment, and writes the one after it. Two places for states serve in turn: when a
    // segment may read, all before it have.
    LINATTN_DEVICE void pass_state() {
        const Relay& relay = call_.relay;
        int* const passed = relay.passed + work_.index(call_, E);
        const int turn = work_.segment;
        const bool is_first = turn == 0, is_last = turn + 1 == call_.segments;
        Work before = work_, behind = work_;
        before.segment = (turn + 1) % 2;
        behind.segment = turn % 2;
        if (!is_first) {
            if (thread_index() == 0) await(passed, turn);
            LINATTN_BLOCK_BARRIER();
        }
        this->exchange_states(is_first ? call_.start : relay.ends, before, is_last ? call_.last : relay.ends, behind);
        LINATTN_BLOCK_BARRIER();
        if (thread_index() == 0 && !is_last) announce(passed, turn + 1);
    }

    LINATTN_DEVICE void copy(Int i, int set, bool reads, bool sums) {
        const Int position = chunk(i);
        if (reads) {
            copy_rows<A>(memory_.staged_rows(set), call_.row, position, 0);
            if constexpr (Shape::pair) copy_rows<E>(memory_.staged_second_rows(set), call_.second_row, position, 0);
            if constexpr (Shape::stages_origin) {
                if (call_.finish == Finish::derivative) {
                    copy_rows<E>(memory_.staged_origin(static_cast<int>(i % 2)), call_.origin, position, work_.column);
                }
                if (finds_bias() && call_.normalize) copy_rows<A>(memory_.staged_output(), call_.output, position, 0);
            }
        }
        if (sums) {
            copy_rows<A>(memory_.staged_keys(set), call_.key, position, 0);
            copy_rows<E>(memory_.staged_values(set), call_.value, position, work_.column);
        }
        copy_vector(memory_.staged_normalizer(), call_.normalizer, position);
        copy_vector(memory_.staged_bias(), call_.row_bias, position);
        copies_commit();
    }

    template <int width>
    LINATTN_DEVICE void copy_rows(const Staged& staged, const Operand& operand, Int position, Int column) const {
        const int count = rows_below(live_of(operand), position);
        stage<C, width, threads, parts>(staged, operand, work_.place, position, column, count);
    }

    // Numbers of queries, one each.
    LINATTN_DEVICE void copy_vector(float* staged, const float* numbers, Int position) const {
        if (numbers == nullptr) return;
        const int count = rows_below(work_.place.rows, position);
        const Int at = of_query(call_, work_, position);
        const int i = thread_index();
        if (i < C) copy4(staged + i, numbers + (i < count ? at + i : 0), i < count);
    }

    LINATTN_DEVICE bool finds_bias() const { return !Shape::pair && call_.out_bias != nullptr; }

    LINATTN_DEVICE void prepare_tiles(Int position, bool reads, bool sums) {
        const int buffer = memory_.buffer;
        if (reads) {
            prepare_rows<A>(memory_.rows(), memory_.staged_rows(buffer), call_.row, position, 0);
            if constexpr (Shape::pair) {
                prepare_rows<E>(memory_.second_rows(), memory_.staged_second_rows(buffer), call_.second_row, position,
                                0);
            }
        }
        if (finds_bias()) {
            if (reads) this->find_bias(position, rows_below(work_.place.rows, position));
        } else if (call_.row_bias != nullptr && thread_index() < C) {
            memory_.bias()[thread_index()] = memory_.staged_bias()[thread_index()];
        }
        if (!sums) return;
        prepare_rows<A>(memory_.keys(), memory_.staged_keys(buffer), call_.key, position, 0);
        prepare_rows<E>(memory_.values(), memory_.staged_values(buffer), call_.value, position, work_.column);
        if (call_.column != Column::none) write_column(rows_below(live_of(call_.value), position));
    }

    template <int width, class TileOf>
    LINATTN_DEVICE void prepare_rows(TileOf tile, const Staged& staged, const Operand& operand, Int position,
                                     Int column) const {
        const int live = rows_below(live_of(operand), position);
        prepare<C, width, threads>(tile, staged, operand, column, live, memory_.staged_normalizer());
    }

    // The column after the slice: its products with the keys give z, with the rows n.
    LINATTN_DEVICE void write_column(int live) const {
        const int i = thread_index();
        if (i >= C) return;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (i < live) x[0] = call_.column == Column::ones ? 1.0f : memory_.staged_bias()[i];
        memory_.values().write_eight(i, E, x);
    }

    Int first_, chunks_;  // where the segment begins, and its length
};

}  // namespace linattn
