// The product that every pass of the operator is an instance of. For each sequence and head, with rows a_i, keys b_j
// and values c_j,
//
//     out_i = sum_j (a_i . b_j + bias) c_j,    j <= i, or j >= i where it runs backwards in time,
//
// in chunks of the sequence: within a chunk the masked matrix of a_i . b_j, between chunks the state
//
//     X = sum_j b_j c_j^T   (A x E),
//
// whose sums are float32 and stay in registers; the tensor cores read a copy of it from shared memory.
//
//     pass        a             b             c              time       bias    column of c   result
//     forward     phi(q)        phi(k)        v              forwards   -       1: gives n    (.) / n
//     grad q      g = G / n     v             phi(k)         forwards   h_i     -             (.) phi'(q)
//     grad k      v             g             phi(q)         backwards  h_j     -             (.) phi'(k)
//     grad v      phi(k)        phi(q)        g              backwards  -       -             (.)
//     sums        -             phi(k), phi(q)  v, g         any        -       1, h          X alone
//     read        as above, all of X at once and no keys: attention that is not causal
//
// n_i = phi(q_i) . z_i + eps, h_i = -g_i . out_i. Keys and values of the last two rows of gradients are queries and
// their gradients: time runs backwards, and R takes the place of S (equations 13 to 15 of the paper, with the
// normaliser folded in).
//
// One block computes `slice` columns of c for one segment of one sequence and head. It is told where the state of its
// segment begins and, if somebody wants it, where to leave the state at its end.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

// A state in global memory with strides in elements: X (A x C columns), and beside it a vector, z or r, that runs
// along the rows of X (column, forward) or along its columns (gradients of q and k).
struct StateView {
    float* matrix;
    float* vector;
    Int sequence, head, segment;        // strides of `matrix`
    Int row, column;
    Int vector_sequence, vector_head, vector_segment;  // strides of `vector`, whose numbers are neighbours
};

enum class Bias : int { none = 0, of_row = 1, of_key = 2 };
enum class Column : int { none = 0, ones = 1, bias = 2 };
enum class Finish : int { plain = 0, divide = 1, derivative = 2 };

struct Product {
    Operand row, key, value;
    Int heads, sequences, queries, keys;  // `queries` and `keys` are lengths of the tensors
    const Int* key_lengths;
    const Int* cu_seqlens;
    int slices, segments;
    bool reads, sums;     // whether there are rows to compute, and keys to add
    bool backwards;
    bool rows_are_keys;   // rows are positions of keys: gradients of k and v
    Bias bias;
    Column column;
    Finish finish;
    const float* normaliser;  // (B, H, N), of queries
    const float* row_bias;    // h, (B, H, N)
    StateView start, last;    // null pointers: zeros, and not wanted
    void* out;                // contiguous (B, H, length of rows, value.width)
    Dtype out_dtype;
    bool out_vectors;         // rows of `out` begin at multiples of 16 bytes
    float* out_normaliser;    // (B, H, N), for Finish::divide
    Operand origin;           // what the derivative is taken at, for Finish::derivative
    float eps;
};

// The widths that a kernel is compiled for: A of rows and keys, E of a slice of the values, C positions of a chunk.
template <int parts_, int A_, int E_, int C_>
struct ProductShape {
    static constexpr int parts = parts_, A = A_, E = E_, C = C_;
    static constexpr int warps = 4, threads = 32 * warps;
    // Blocks that a multiprocessor shall hold at once, which bounds the registers of each.
    static constexpr int resident = parts > 1 || A > 64 ? 1 : 3;
    // Out: warps share the rows of a chunk, 16 each, then the columns of the slice.
    static constexpr int row_groups = C / 16, column_groups = warps / row_groups;
    static constexpr int out_tiles = E / 8 / column_groups;
    // State: warps share the rows of X, then its columns; the column beside the slice is everyone's last tile.
    static constexpr int state_rows = A / 16 < warps ? A / 16 : warps, state_columns = warps / state_rows;
    static constexpr int state_row_tiles = A / 16 / state_rows, state_tiles = E / 8 / state_columns;
    // Shared memory. Pitches keep the lanes of a load on different banks. With one part, numbers are prepared where they
    // were copied to: there are two sets of tiles in turn. With more, they are copied elsewhere and widened on the way.
    static constexpr int buffers = parts == 1 ? 2 : 1;
    static constexpr int pitch_a = parts == 1 ? A + 8 : A + 4, pitch_e = parts == 1 ? E + 8 : E + 12;
    static constexpr int element = parts == 1 ? 2 : 4, staged = parts == 1 ? 0 : 4;
    static constexpr int row_tile = 0, key_tile = row_tile + C * pitch_a * element;
    static constexpr int value_tile = key_tile + C * pitch_a * element;
    static constexpr int tiles = value_tile + C * pitch_e * element;
    static constexpr int state_tile = buffers * tiles;
    static constexpr int staged_row = state_tile + A * pitch_e * element;
    static constexpr int staged_key = staged_row + C * A * staged, staged_value = staged_key + C * A * staged;
    static constexpr int vectors = staged_value + C * E * staged;
    // Normalisers and biases as they are staged, the biases in use, the state's vector, its parts of a chunk.
    static constexpr int shared_bytes = vectors + 4 * (3 * C + E + threads);
    static_assert(64 % C == 0, "segments are whole chunks");
    static_assert(row_groups * column_groups == warps && state_rows * state_columns == warps);
    static_assert(A % (16 * state_rows) == 0 && E % (8 * column_groups) == 0 && E <= A && threads % E == 0);
};

LINATTN_DEVICE Int clamp(Int x, Int low, Int high) { return x < low ? low : x > high ? high : x; }

// The place of a sequence; lengths beyond what exists are taken as all that exists.
LINATTN_DEVICE Place place_of(const Product& call, Int sequence, Int head) {
    if (call.cu_seqlens == nullptr) {
        const Int live = call.key_lengths == nullptr ? call.keys : clamp(call.key_lengths[sequence], 0, call.keys);
        return {sequence, head, 0, call.queries, call.keys, live};
    }
    const Int start = clamp(call.cu_seqlens[sequence], 0, call.keys);
    const Int length = clamp(call.cu_seqlens[sequence + 1], start, call.keys) - start;
    return {0, head, start, length, length, length};
}

// Segments begin at the same positions whatever the kernels' chunks are, for one pass goes on from another's sums.
constexpr Int segment_grain = 64;

LINATTN_DEVICE Int positions_of_segment(Int positions, int segments) {
    const Int grains = (positions + segment_grain - 1) / segment_grain;
    return (grains + segments - 1) / segments * segment_grain;
}

// What one block works on.
template <class Shape>
class ProductBlock {
    static constexpr int parts = Shape::parts, A = Shape::A, E = Shape::E, C = Shape::C;
    static constexpr int threads = Shape::threads;
    using TileA = Tile<parts, Shape::pitch_a>;
    using TileE = Tile<parts, Shape::pitch_e>;

public:
    LINATTN_DEVICE ProductBlock(const Product& call, unsigned char* shared) : call_(call), shared_(shared) {
        const Int index = block_x();
        column_ = index % call.slices * E;
        const Int sequence_and_head = index / call.slices;
        sequence_ = sequence_and_head / call.heads;
        place_ = place_of(call, sequence_, sequence_and_head % call.heads);
        const Int positions = call.rows_are_keys || !call.reads ? key_positions() : place_.rows;
        const Int chunks = (positions + C - 1) / C, per_segment = positions_of_segment(positions, call.segments) / C;
        first_ = clamp(per_segment * block_y(), 0, chunks);
        end_ = clamp(first_ + per_segment, first_, chunks);
        const int warp = thread_index() / 32;
        row_group_ = warp % Shape::row_groups;
        column_group_ = warp / Shape::row_groups;
        state_row_ = warp % Shape::state_rows * Shape::state_row_tiles * 16;
        state_column_ = warp / Shape::state_rows * Shape::state_tiles * 8;
    }

    LINATTN_DEVICE void run() {
        begin_state();
        if (first_ < end_) start_copies(chunk(0), 0);
        for (Int i = 0; i < end_ - first_; ++i) {
            copies_wait<0>();
            LINATTN_BLOCK_BARRIER();  // the chunk has arrived; nobody reads the tiles of the last one any more
            if (call_.reads && call_.sums) publish_state(i > 0);
            prepare_tiles(chunk(i));
            LINATTN_BLOCK_BARRIER();  // the tiles are complete; what was staged is free
            if (i + 1 < end_ - first_) start_copies(chunk(i + 1), other_buffer());
            if (call_.sums) sum_vector();
            if (call_.reads) read(chunk(i));
            if (call_.sums && (i + 1 < end_ - first_ || call_.last.matrix != nullptr)) add_keys();
            buffer_ = other_buffer();
        }
        if (call_.last.matrix != nullptr) end_state();
    }

private:
    // Float32 vectors in shared memory.
    LINATTN_DEVICE float* vectors() const { return reinterpret_cast<float*>(shared_ + Shape::vectors); }
    LINATTN_DEVICE float* staged_normaliser() const { return vectors(); }
    LINATTN_DEVICE float* staged_bias() const { return vectors() + C; }
    LINATTN_DEVICE float* bias() const { return vectors() + 2 * C; }
    LINATTN_DEVICE float* state_vector() const { return vectors() + 3 * C; }
    LINATTN_DEVICE float* vector_parts() const { return vectors() + 3 * C + E; }
    template <class TileOf>
    LINATTN_DEVICE TileOf tile(int offset) const {
        return {reinterpret_cast<Element<parts>*>(shared_ + offset)};
    }
    LINATTN_DEVICE TileA row_tile() const { return tile<TileA>(Shape::row_tile + buffer_); }
    LINATTN_DEVICE TileA key_tile() const { return tile<TileA>(Shape::key_tile + buffer_); }
    LINATTN_DEVICE TileE value_tile() const { return tile<TileE>(Shape::value_tile + buffer_); }

    // Where a chunk is copied to: with one part into the tiles of `buffer`.
    LINATTN_DEVICE Staged staged_row(int buffer) const {
        if (parts == 1) return {shared_ + Shape::row_tile + buffer, Shape::pitch_a};
        return {shared_ + Shape::staged_row, A};
    }
    LINATTN_DEVICE Staged staged_key(int buffer) const {
        if (parts == 1) return {shared_ + Shape::key_tile + buffer, Shape::pitch_a};
        return {shared_ + Shape::staged_key, A};
    }
    LINATTN_DEVICE Staged staged_value(int buffer) const {
        if (parts == 1) return {shared_ + Shape::value_tile + buffer, Shape::pitch_e};
        return {shared_ + Shape::staged_value, E};
    }
    LINATTN_DEVICE int other_buffer() const { return parts == 1 ? Shape::tiles - buffer_ : 0; }
    LINATTN_DEVICE TileE state_tile() const { return tile<TileE>(Shape::state_tile); }

    // Time running backwards, what is added are queries and their gradients.
    LINATTN_DEVICE bool adds_queries() const { return !call_.key.of_keys && !call_.value.of_keys; }
    LINATTN_DEVICE Int key_positions() const { return adds_queries() && !call_.rows_are_keys ? place_.rows : place_.keys; }
    LINATTN_DEVICE Int live_rows() const { return call_.rows_are_keys ? place_.live_keys : place_.rows; }
    LINATTN_DEVICE Int live_of(const Operand& operand) const { return operand.of_keys ? place_.live_keys : place_.rows; }
    LINATTN_DEVICE bool has_vector() const { return call_.bias != Bias::none; }

    // The position at which the i-th chunk of this segment begins.
    LINATTN_DEVICE Int chunk(Int i) const { return (call_.backwards ? end_ - 1 - i : first_ + i) * C; }

    // How many of the chunk's rows are below `length`.
    LINATTN_DEVICE int rows_below(Int length, Int position) const {
        return static_cast<int>(clamp(length - position, 0, C));
    }

    LINATTN_DEVICE void start_copies(Int position, int buffer) {
        if (call_.reads) {
            stage<C, A, threads, parts>(staged_row(buffer), call_.row, place_, position, 0,
                                        rows_below(live_of(call_.row), position));
        }
        if (call_.sums) {
            stage<C, A, threads, parts>(staged_key(buffer), call_.key, place_, position, 0,
                                        rows_below(live_of(call_.key), position));
            stage<C, E, threads, parts>(staged_value(buffer), call_.value, place_, position, column_,
                                        rows_below(live_of(call_.value), position));
        }
        stage_vector(staged_normaliser(), call_.normaliser, position);
        stage_vector(staged_bias(), call_.row_bias, position);
        copies_commit();
    }

    LINATTN_DEVICE Int of_query(Int position) const {
        return (place_.batch * call_.heads + place_.head) * call_.queries + place_.start + position;
    }

    LINATTN_DEVICE void stage_vector(float* staged, const float* numbers, Int position) {
        if (numbers == nullptr) return;
        const int count = rows_below(place_.rows, position);
        for (int i = thread_index(); i < C; i += threads) {
            copy4(staged + i, numbers + (i < count ? of_query(position + i) : 0), i < count);
        }
    }

    LINATTN_DEVICE void prepare_tiles(Int position) {
        if (call_.reads) {
            prepare<C, A, threads>(row_tile(), staged_row(buffer_), call_.row, 0,
                                   rows_below(live_of(call_.row), position), staged_normaliser());
        }
        if (call_.row_bias != nullptr) {
            for (int i = thread_index(); i < C; i += threads) bias()[i] = staged_bias()[i];
        }
        if (!call_.sums) return;
        prepare<C, A, threads>(key_tile(), staged_key(buffer_), call_.key, 0,
                               rows_below(live_of(call_.key), position), staged_normaliser());
        const int live = rows_below(live_of(call_.value), position);
        prepare<C, E, threads>(value_tile(), staged_value(buffer_), call_.value, column_, live,
                               staged_normaliser());
        if (call_.column != Column::none) {
            for (int i = thread_index(); i < C; i += threads) {
                float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                if (i < live) x[0] = call_.column == Column::ones ? 1.0f : staged_bias()[i];
                value_tile().write_eight(i, E, x);
            }
        }
    }

    // The tiles of 8 columns that hold numbers: a narrow slice leaves some out.
    LINATTN_DEVICE bool is_wanted(int column) const { return column < call_.value.width - column_; }

    LINATTN_DEVICE void begin_state() {
        LINATTN_UNROLL
        for (int m = 0; m < Shape::state_row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= Shape::state_tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) state_[m][n][i] = start_of(m, n, i);
            }
        }
        if (has_vector()) {
            for (int i = thread_index(); i < E; i += threads) {
                const float* vector = vector_at(call_.start);
                state_vector()[i] = vector != nullptr && is_wanted(i) ? vector[column_ + i] : 0.0f;
            }
        }
        if (!call_.sums) publish_state(false);
    }

    // Which number of X a register holds; columns from E on are the vector's.
    LINATTN_DEVICE int state_row(int m, int i) const { return state_row_ + m * 16 + thread_index() % 32 / 4 + i / 2 * 8; }
    LINATTN_DEVICE int state_column(int n, int i) const {
        return (n < Shape::state_tiles ? state_column_ + n * 8 : E) + thread_index() % 4 * 2 + i % 2;
    }

    LINATTN_DEVICE float* matrix_at(const StateView& view) const {
        return view.matrix == nullptr
                   ? nullptr
                   : view.matrix + sequence_ * view.sequence + place_.head * view.head + block_y() * view.segment;
    }
    LINATTN_DEVICE float* vector_at(const StateView& view) const {
        return view.vector == nullptr ? nullptr
                                      : view.vector + sequence_ * view.vector_sequence +
                                            place_.head * view.vector_head + block_y() * view.vector_segment;
    }

    // Where in global memory a register's number lies, or null where it is padding.
    LINATTN_DEVICE float* number_at(const StateView& view, int m, int n, int i) const {
        const int row = state_row(m, i), column = state_column(n, i);
        if (row >= width_of_rows()) return nullptr;
        if (n < Shape::state_tiles) {
            return view.matrix == nullptr || !is_wanted(column)
                       ? nullptr
                       : matrix_at(view) + row * view.row + (column_ + column) * view.column;
        }
        return call_.column == Column::none || column != E || view.vector == nullptr ? nullptr : vector_at(view) + row;
    }
    LINATTN_DEVICE Int width_of_rows() const { return call_.sums ? call_.key.width : call_.row.width; }

    LINATTN_DEVICE float start_of(int m, int n, int i) const {
        const float* number = number_at(call_.start, m, n, i);
        return number == nullptr ? 0.0f : *number;
    }

    LINATTN_DEVICE void end_state() {
        LINATTN_UNROLL
        for (int m = 0; m < Shape::state_row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= Shape::state_tiles; ++n) {
                // The last tile is held by all who share the rows of X; one of them writes it, for the first slice.
                if (n == Shape::state_tiles && (state_column_ != 0 || column_ != 0)) continue;
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) {
                    float* number = number_at(call_.last, m, n, i);
                    if (number != nullptr) *number = state_[m][n][i];
                }
            }
        }
        if (!has_vector() || call_.last.vector == nullptr) return;
        LINATTN_BLOCK_BARRIER();
        if (first_ < end_) add_vector_parts();
        for (int i = thread_index(); i < E; i += threads) {
            if (is_wanted(i)) vector_at(call_.last)[column_ + i] = state_vector()[i];
        }
    }

    // The state as the tensor cores read it.
    LINATTN_DEVICE void publish_state(bool grown) {
        if (grown && has_vector()) add_vector_parts();
        LINATTN_UNROLL
        for (int m = 0; m < Shape::state_row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= Shape::state_tiles; ++n) {
                if (n == Shape::state_tiles && (state_column_ != 0 || call_.column == Column::none)) continue;
                LINATTN_UNROLL
                for (int i = 0; i < 4; i += 2) {
                    state_tile().write_pair(state_row(m, i), state_column(n, i), state_[m][n][i], state_[m][n][i + 1]);
                }
            }
        }
    }

    // X += b^T c of the chunk. The chunk's sum is taken apart and then added with rounding to nearest, which the tensor
    // cores do not do: over a long sequence their own sums would drift.
    LINATTN_DEVICE void add_keys() {
        LINATTN_UNROLL
        for (int m = 0; m < Shape::state_row_tiles; ++m) {
            const int row = state_row_ + m * 16;
            if (row >= call_.key.width) continue;
            LeftFragment<parts> keys[C / 16];
            LINATTN_UNROLL
            for (int k = 0; k < C / 16; ++k) keys[k] = key_tile().left_transposed(k * 16, row);
            LINATTN_UNROLL
            for (int n = 0; n + 1 < Shape::state_tiles; n += 2) {
                if (!is_wanted(state_column_ + n * 8)) continue;
                float sum[2][4] = {};
                LINATTN_UNROLL
                for (int k = 0; k < C / 16; ++k) {
                    const RightFragment<parts> values = value_tile().right(k * 16, state_column_ + n * 8);
                    multiply<parts>(sum[0], keys[k], values, 0);
                    multiply<parts>(sum[1], keys[k], values, 1);
                }
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) {
                    state_[m][n][i] += sum[0][i];
                    state_[m][n + 1][i] += sum[1][i];
                }
            }
            if (Shape::state_tiles % 2 == 1) add_keys_to(m, Shape::state_tiles - 1, keys);
            if (call_.column != Column::none) add_keys_to(m, Shape::state_tiles, keys);
        }
    }

    // The same for a single tile of 8 columns.
    LINATTN_DEVICE void add_keys_to(int m, int n, const LeftFragment<parts> (&keys)[C / 16]) {
        float sum[4] = {};
        const int column = n == Shape::state_tiles ? E : state_column_ + n * 8;
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) {
            multiply<parts>(sum, keys[k], value_tile().template right<true>(k * 16, column), 0);
        }
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) state_[m][n][i] += sum[i];
    }

    // The chunk's part of the vector that runs along the columns of X: sum_j c_j, or sum_j bias_j c_j.
    LINATTN_DEVICE void sum_vector() {
        if (!has_vector()) return;
        constexpr int groups = threads / E;
        const int column = thread_index() % E, group = thread_index() / E;
        float sum = 0;
        for (int j = group; j < C; j += groups) {
            const float value = value_tile().read(j, column);
            sum += call_.bias == Bias::of_key ? bias()[j] * value : value;
        }
        vector_parts()[thread_index()] = sum;
    }

    LINATTN_DEVICE void add_vector_parts() {
        for (int i = thread_index(); i < E; i += threads) {
            float sum = state_vector()[i];
            for (int group = 0; group < threads / E; ++group) sum += vector_parts()[group * E + i];
            state_vector()[i] = sum;
        }
    }

    LINATTN_DEVICE LeftFragment<parts> row_fragment(int k) const { return row_tile().left(row_group_ * 16, k * 16); }

    // out_i for the 16 rows and the columns of this warp.
    LINATTN_DEVICE void read(Int position) {
        float out[Shape::out_tiles + 1][4] = {};
        if (call_.sums) {
            LINATTN_UNROLL
            for (int j = 0; j < C / 16; ++j) {
                if (call_.backwards ? j >= row_group_ : j <= row_group_) add_block(out, j);
            }
        }
        add_state(out);
        finish(out, position);
    }

    // out += (a . b + bias) c for the 16 keys of block j.
    LINATTN_DEVICE void add_block(float (&out)[Shape::out_tiles + 1][4], int j) {
        float scores[2][4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < A / 16; ++k) {
            if (k * 16 >= call_.row.width) continue;
            const LeftFragment<parts> rows = row_fragment(k);
            const RightFragment<parts> keys = key_tile().right_transposed(j * 16, k * 16);
            multiply<parts>(scores[0], rows, keys, 0);
            multiply<parts>(scores[1], rows, keys, 1);
        }
        if (call_.bias != Bias::none || j == row_group_) weigh(scores, j);
        multiply_values(out, left_of<parts>(scores), value_tile(), j * 16);
    }

    // Adds the bias, and leaves only the keys that each row sees.
    LINATTN_DEVICE void weigh(float (&scores)[2][4], int j) const {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < 2; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int row = row_group_ * 16 + lane / 4 + i / 2 * 8, key = j * 16 + n * 8 + lane % 4 * 2 + i % 2;
                if (call_.bias != Bias::none) scores[n][i] += bias()[call_.bias == Bias::of_row ? row : key];
                if (call_.backwards ? key < row : key > row) scores[n][i] = 0.0f;
            }
        }
    }

    // out += a X, and what the bias adds to it.
    LINATTN_DEVICE void add_state(float (&out)[Shape::out_tiles + 1][4]) {
        LINATTN_UNROLL
        for (int k = 0; k < A / 16; ++k) {
            if (k * 16 < call_.row.width) multiply_values(out, row_fragment(k), state_tile(), k * 16);
        }
        if (!has_vector()) return;
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < Shape::out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int row = row_group_ * 16 + lane / 4 + i / 2 * 8;
                const float weight = call_.bias == Bias::of_row ? bias()[row] : 1.0f;
                out[n][i] += weight * state_vector()[out_column(n) + lane % 4 * 2 + i % 2];
            }
        }
    }

    LINATTN_DEVICE int out_column(int n) const { return (column_group_ * Shape::out_tiles + n) * 8; }

    LINATTN_DEVICE void multiply_values(float (&out)[Shape::out_tiles + 1][4], const LeftFragment<parts>& left,
                                        TileE values, int row) const {
        LINATTN_UNROLL
        for (int n = 0; n + 1 < Shape::out_tiles; n += 2) {
            if (!is_wanted(out_column(n))) continue;
            const RightFragment<parts> right = values.right(row, out_column(n));
            multiply<parts>(out[n], left, right, 0);
            multiply<parts>(out[n + 1], left, right, 1);
        }
        if (Shape::out_tiles % 2 == 1) {
            constexpr int last = Shape::out_tiles - 1;
            multiply<parts>(out[last], left, values.template right<true>(row, out_column(last)), 0);
        }
        if (call_.finish == Finish::divide) {
            multiply<parts>(out[Shape::out_tiles], left, values.template right<true>(row, E), 0);
        }
    }

    // Divides, and brings the rows to global memory by way of the row tile, which nobody needs any more.
    LINATTN_DEVICE void finish(float (&out)[Shape::out_tiles + 1][4], Int position) {
        const int lane = thread_index() % 32, row = row_group_ * 16 + lane / 4;
        if (call_.finish == Finish::divide) divide(out, position);
        if (Shape::column_groups > 1) LINATTN_BLOCK_BARRIER();  // others read the same rows
        else LINATTN_WARP_BARRIER();
        LINATTN_UNROLL
        for (int n = 0; n < Shape::out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; i += 2) {
                row_tile().write_pair(row + i / 2 * 8, out_column(n) + lane % 4 * 2, out[n][i], out[n][i + 1]);
            }
        }
        LINATTN_WARP_BARRIER();
        store(position);
    }

    LINATTN_DEVICE void divide(float (&out)[Shape::out_tiles + 1][4], Int position) {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            // The lane with the first column of the last tile has the sum of the weights.
            const float n = shuffle(out[Shape::out_tiles][2 * half], lane & ~3) + call_.eps;
            const Int row = position + row_group_ * 16 + lane / 4 + half * 8;
            if (lane % 4 == 0 && column_ == 0 && column_group_ == 0 && row < place_.rows) {
                call_.out_normaliser[of_query(row)] = n;
            }
            LINATTN_UNROLL
            for (int tile = 0; tile < Shape::out_tiles; ++tile) {
                out[tile][2 * half] /= n;
                out[tile][2 * half + 1] /= n;
            }
        }
    }

    // 16 rows of the row tile, the columns of this warp, eight numbers at a time.
    LINATTN_DEVICE void store(Int position) {
        const Int length = call_.rows_are_keys ? place_.keys : place_.rows;
        for (int i = thread_index() % 32; i < 16 * Shape::out_tiles; i += 32) {
            const int row = row_group_ * 16 + i / Shape::out_tiles;
            const int column = (column_group_ * Shape::out_tiles + i % Shape::out_tiles) * 8;
            if (position + row < length && is_wanted(column)) store_eight(position + row, row, column);
        }
    }

    LINATTN_DEVICE void store_eight(Int position, int row, int column) {
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const Int first = column_ + column, columns = call_.value.width - first;
        const int count = columns < 8 ? static_cast<int>(columns) : 8;
        if (position < live_rows()) {
            row_tile().read_eight(x, row, column);
            if (call_.finish == Finish::derivative) multiply_derivative(x, position, first, count);
        }
        const Int length = call_.rows_are_keys ? call_.keys : call_.queries;
        const Int at = ((place_.batch * call_.heads + place_.head) * length + place_.start + position) *
                           call_.value.width + first;
        if (call_.out_vectors && count == 8) {
            write_eight(static_cast<unsigned char*>(call_.out) + at * bytes_of(call_.out_dtype), call_.out_dtype, x);
        } else {
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) {
                if (k < count) write_number(call_.out, at + k, call_.out_dtype, x[k]);
            }
        }
    }

    LINATTN_DEVICE void multiply_derivative(float (&x)[8], Int position, Int first, int count) const {
        const Operand& origin = call_.origin;
        if (origin.vectors && count == 8) {
            float y[8];
            read_eight(y, address(origin, place_, position, first), origin.dtype);
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) x[k] *= feature_derivative<parts>(origin.map, y[k]);
            return;
        }
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) {
            if (k >= count) continue;
            const void* number = address(origin, place_, position, first + k);
            x[k] *= feature_derivative<parts>(origin.map, read_number(number, 0, origin.dtype));
        }
    }

    const Product& call_;
    unsigned char* shared_;
    Place place_;
    Int sequence_, column_, first_, end_;  // `column_` is where the slice begins, the others are chunks
    int row_group_, column_group_, state_row_, state_column_;
    int buffer_ = 0;  // which tiles are in use, as their offset
    float state_[Shape::state_row_tiles][Shape::state_tiles + 1][4];
};

template <class Shape>
LINATTN_KERNEL(Shape::threads, Shape::resident) product(const LINATTN_PARAMETER Product call) {
    LINATTN_SHARED(shared);
    ProductBlock<Shape>(call, shared).run();
}

}  // namespace linattn
