// One block of the product: chunk by chunk; the next chunk's rows are copied while this one's are multiplied.
// The segments of a sequence begin with states that an earlier launch wrote.
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
        work_ = work_of_block(call, E, Shape::pair ? 0 : call.first_segment);
        const int positions = positions_to_walk();
        const Int per_segment = positions_of_segment(positions, call.segments);
        first_ = static_cast<int>(clamp(per_segment * work_.segment, 0, positions));
        const int length = static_cast<int>(clamp(per_segment, 0, positions - first_));
        chunks_ = length / C + (length % C != 0);
        row_ = start_of(call.row, 0);
        second_row_ = start_of(call.second_row, 0);
        key_ = start_of(call.key, 0);
        value_ = start_of(call.value, work_.column);
        origin_ = start_of(call.origin, work_.column);
        output_ = start_of(call.output, 0);
    }

    LINATTN_DEVICE void run() {
        // Values of width 0 have no matrix, but a vector.
        const bool keeps =
            (call_.last.matrix != nullptr || call_.last.vector != nullptr) && work_.writes(call_, call_.last);
        this->load_state(call_.start);
        walk(keeps);
        if (keeps) this->store_state(call_.last);
    }

private:
    // Backwards in time, queries and their gradients are added.
    LINATTN_DEVICE int positions_to_walk() const {
        const bool of_queries = call_.reads ? !call_.rows_are_keys : !call_.key.of_keys && !call_.value.of_keys;
        return of_queries ? work_.place.rows : work_.place.keys;
    }
    LINATTN_DEVICE int live_of(const Operand& operand) const {
        return operand.of_keys ? work_.place.live_keys : work_.place.rows;
    }

    // The position at which the i-th chunk of this segment begins, and how many of its rows are below `length`.
    LINATTN_DEVICE int chunk(int i) const { return first_ + (call_.backwards ? chunks_ - 1 - i : i) * C; }
    LINATTN_DEVICE int rows_below(int length, int position) const {
        return length - position < C ? (length > position ? length - position : 0) : C;
    }

    // Goes through the chunks. `keeps`: the keys of the last chunk are added to the state, too.
    LINATTN_DEVICE void walk(bool keeps) {
        if (chunks_ > 0) copy(0, memory_.buffer);
        if (call_.reads && !call_.sums) this->publish_state();
        for (int i = 0; i < chunks_; ++i) {
            copies_wait<0>();
            LINATTN_BLOCK_BARRIER();  // the chunk has arrived, and all threads are done with the last one's tiles
            if (call_.sums && i > 0) this->add_vector();
            if (call_.reads && call_.sums) this->publish_state();
            prepare_tiles(chunk(i), i % 2);
            LINATTN_BLOCK_BARRIER();  // the tiles are complete; what was staged is free
            if (i + 1 < chunks_) copy(i + 1, memory_.other_buffer());
            if (call_.sums) this->sum_vector();
            if (call_.reads && !call_.finds_bias_alone) this->read_rows(chunk(i), i % 2);
            if (call_.sums && (keeps || i + 1 < chunks_)) this->add_keys();
            memory_.buffer = memory_.other_buffer();
        }
        LINATTN_BLOCK_BARRIER();
        if (call_.sums && keeps && chunks_ > 0) this->add_vector();
    }

    LINATTN_DEVICE void copy(int i, int set) {
        const int position = chunk(i);
        if (call_.reads) {
            copy_rows<A>(memory_.staged_rows(set), call_.row, row_, position, 0);
            if constexpr (Shape::pair)
                copy_rows<E>(memory_.staged_second_rows(set), call_.second_row, second_row_, position, 0);
            if constexpr (Shape::stages_origin) {
                if (call_.finish == Finish::derivative && !call_.finds_bias_alone) {
                    copy_rows<E>(memory_.staged_origin(i % 2), call_.origin, origin_, position, work_.column);
                }
                if (finds_bias() && call_.normalize)
                    copy_rows<A>(memory_.staged_output(), call_.output, output_, position, 0);
            }
        }
        if (call_.sums) {
            copy_rows<A>(memory_.staged_keys(set), call_.key, key_, position, 0);
            copy_rows<E>(memory_.staged_values(set), call_.value, value_, position, work_.column);
        }
        if (call_.mask != nullptr) copy_mask(i % 2, position);
        copy_vector(memory_.staged_normalizer(), call_.normalizer, position);
        copy_vector(memory_.staged_bias(), call_.row_bias, position);
        copies_commit();
    }

    template <int width>
    LINATTN_DEVICE void copy_rows(const Staged& staged, const Operand& operand, const unsigned char* start,
                                  int position, Int column) const {
        const unsigned char* source = start + position * operand.tensor.position * bytes_of(operand.dtype);
        const int columns = static_cast<int>(operand.width - column), count = rows_below(live_of(operand), position);
        stage<C, width, threads, parts>(staged, operand, source, columns, count);
    }

    // Numbers of queries, one each.
    LINATTN_DEVICE void copy_vector(float* staged, const float* numbers, int position) const {
        if (numbers == nullptr) return;
        const int count = rows_below(work_.place.rows, position);
        const int i = thread_index();
        if (i < C) copy4(staged + i, numbers + (i < count ? work_.first_query + position + i : 0), i < count);
    }

    LINATTN_DEVICE void copy_mask(int turn, int position) const {
        const int i = thread_index();
        if (i >= C) return;
        const unsigned char* mask = call_.mask + work_.place.batch * call_.keys + work_.place.start + position;
        memory_.exists(turn)[i] = i < rows_below(work_.place.live_keys, position) ? mask[i] : 0;
    }

    // What a mask says of an operand's rows; null where all exist.
    LINATTN_DEVICE const unsigned char* exists(const Operand& operand, int turn) const {
        return operand.of_keys && call_.mask != nullptr ? memory_.exists(turn) : nullptr;
    }

    LINATTN_DEVICE bool finds_bias() const { return !Shape::pair && call_.out_bias != nullptr; }

    LINATTN_DEVICE void prepare_tiles(int position, int turn) {
        const int buffer = memory_.buffer;
        if (call_.reads) {
            prepare_rows<A>(memory_.rows(), memory_.staged_rows(buffer), call_.row, position, 0, turn);
            if constexpr (Shape::pair) {
                prepare_rows<E>(memory_.second_rows(), memory_.staged_second_rows(buffer), call_.second_row, position,
                                0, turn);
            }
        }
        if (finds_bias()) {
            if (call_.reads) this->find_bias(position, rows_below(work_.place.rows, position));
        } else if (call_.row_bias != nullptr && thread_index() < C) {
            memory_.bias()[thread_index()] = memory_.staged_bias()[thread_index()];
        }
        if (!call_.sums) return;
        prepare_rows<A>(memory_.keys(), memory_.staged_keys(buffer), call_.key, position, 0, turn);
        prepare_rows<E>(memory_.values(), memory_.staged_values(buffer), call_.value, position, work_.column, turn);
        if (call_.column != Column::none) write_column(rows_below(live_of(call_.value), position), turn);
    }

    template <int width, class TileOf>
    LINATTN_DEVICE void prepare_rows(TileOf tile, const Staged& staged, const Operand& operand, int position,
                                     Int column, int turn) const {
        const int live = rows_below(live_of(operand), position);
        prepare<C, width, threads>(tile, staged, operand, column, live, memory_.staged_normalizer(),
                                   exists(operand, turn));
    }

    // The column after the slice: its products with the keys give z, with the rows n.
    LINATTN_DEVICE void write_column(int live, int turn) const {
        const int i = thread_index();
        if (i >= C) return;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const unsigned char* there = exists(call_.value, turn);
        if (i < live && (there == nullptr || there[i]))
            x[0] = call_.column == Column::ones ? 1.0f : memory_.staged_bias()[i];
        memory_.values().write_eight(i, E, x);
    }

    // Found once: with strides of 64 bits, an address costs many times the copy itself.
    LINATTN_DEVICE const unsigned char* start_of(const Operand& operand, Int column) const {
        return operand.tensor.data == nullptr ? nullptr : address(operand, work_.place, 0, column);
    }

    int first_, chunks_;  // where the segment begins, and its length
    const unsigned char *row_, *second_row_, *key_, *value_, *origin_, *output_;  // where each operand's rows begin
};

}  // namespace linattn
