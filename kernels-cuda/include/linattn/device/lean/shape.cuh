// The product of a forward pass in bfloat16 with 64 features and 64 values, or 128 of each, where nothing is masked out:
// whatever the generic kernel decides while it runs is a template argument here, or the host's decision not to call it.
//
// - A chunk has 64 positions. Each warp computes 16 of its rows with 64 columns, and keeps 16 rows of the state with all
//   columns: four warps, or eight for 128 dims, of which two have the same rows, and both find their scores. What
//   causality leaves out is skipped by conditions that are the same for a whole warp.
// - The rows phi(q) are left operands in registers, where the feature map is applied to them. phi(k) is written to
//   where k was copied, by the thread that copied it, before the barrier that ends the copy.
// - The masked scores of a row, as bfloat16, are left operands of 16 registers. Two tiles of columns follow at a time:
//   rows times state, scores times values, and keys times values for the state, for which values are loaded once.
// - The normalizers come by the tensor cores too, without a column of ones in memory: scores times a right operand
//   that holds ones, and rows times one whose columns are all z. Each lane gets the sums of its own rows.
// - Results go through the rows' tile, once the warps that read it have their rows in registers.
// - Two stages of copies: a chunk is under way while another is multiplied. A third would take the room of another block,
//   which hides more. Two barriers a chunk, and for 128 dims one more, after the rows.
// - The state's vector lies in the padding of the state's rows, and biases in that of the keys. So the gradients of queries
//   take the 99 KiB of a block on 8.6, 8.9 and 12.x, those of keys and values half of a multiprocessor of 8.0, and not a
//   byte more.
//
// Causal gradients of 64 dims are the same product of other operands, see gradients.cuh.
#pragma once

#include "linattn/device/product/call.cuh"

namespace linattn {

// What a launch does. Forward: all of it, the sums over keys alone, or the reading of a finished state. Causal gradients,
// which gradients.cuh computes: those of queries; the pair of those of keys and values; the sums over queries alone; those
// of queries with these sums.
enum class Walk : int { causal = 0, sums = 1, read = 2, queries = 3, pair = 4, query_sums = 5, queries_summed = 6 };

template <int D_, FeatureMap map_, Walk walk_>
struct LeanShape {
    static constexpr FeatureMap map = map_;
    static constexpr Walk walk = walk_;
    static constexpr bool pair = walk == Walk::pair, sums_queries = walk == Walk::queries_summed;
    static constexpr bool of_queries = walk == Walk::queries || sums_queries;
    static constexpr bool gradients = pair || of_queries || walk == Walk::query_sums, backwards = pair;
    static constexpr bool reads = walk != Walk::sums && walk != Walk::query_sums, sums = walk != Walk::read;
    static constexpr int D = D_, C = 64, warps = D / 16, threads = 32 * warps, stages = 2;
    // How many groups of rows a chunk has, and how many groups of columns its results.
    static constexpr int row_groups = C / 16, column_groups = reads ? warps / row_groups : 1;
    static constexpr int columns = D / column_groups;  // of the results of a warp
    static_assert(!reads || columns == 64, "eight lanes bring a row of a warp to global memory");
    // How many blocks fit into a multiprocessor with 228 KiB of shared memory. Using fewer registers than so many blocks
    // may have would gain nothing.
    static constexpr int resident = D > 64 ? 1 : gradients && reads ? 2 : 3;

    // Pitches keep the lanes of a load on different banks.
    static constexpr int pitch = D + 8;
    static constexpr int tile = C * pitch * 2;
    static constexpr int key = reads ? tile : 0, value = key + tile, second = value + tile, third = second + tile;
    static constexpr int stage = of_queries ? third + tile : pair ? third : sums ? second : tile;
    static constexpr int state = stages * stage, shared_bytes = state + (reads ? D * pitch * 2 : 0);
    // The vector, 16 bytes behind each row of the state: two rows hold 16 numbers in bfloat16, or eight in float32.
    static constexpr int vector = state + D * 2, vector_rows = 2 * pitch * 2;
    // Of gradients, behind the rows of the keys: their biases in parts, see `bias_parts`, and as float32.
    static constexpr int parts = key + D * 2, bias = parts + 3 * (C / 8) * pitch * 2;
    static_assert(3 * (C / 8) + C / 4 <= C, "16 bytes behind each row");
    static_assert(C == segment_grain, "segments are whole chunks");

    // Where the results of a warp begin, and the n-th 16 columns of its rows of the state: first come those of its
    // results, then the others.
    LINATTN_DEVICE static int first_column(int warp) { return column_groups == 1 ? 0 : warp / row_groups * columns; }
    LINATTN_DEVICE static int column(int first, int n) { return n * 16 < columns ? first + n * 16 : n * 16 - first; }
};

// Tiles in shared memory as the collective loads of one lane see them. The address of each fragment is a constant away
// from `data`, so none is computed.
template <int pitch>
struct LaneOfTile {
    unsigned char* data;

    LINATTN_DEVICE unsigned char* at(int row, int column) const { return data + (row * pitch + column) * 2; }

    // a[m][k] or b[n][k] = tile[row + first][column + second]; `transposed`: a[k][m], b[k][n].
    template <class Fragment, bool transposed>
    LINATTN_DEVICE Fragment load(int row, int column) const {
        Fragment fragment;
        if (transposed) load_matrices_transposed(fragment.pairs[0], at(row, column));
        else load_matrices(fragment.pairs[0], at(row, column));
        return fragment;
    }
};

// The shared memory of a block, as one lane sees it.
template <class Shape>
class LeanMemory {
    static constexpr int pitch = Shape::pitch, vectors = Shape::D / 8;  // of 16 bytes in a row
    using Lane = LaneOfTile<pitch>;

public:
    LINATTN_DEVICE LeanMemory(unsigned char* shared, int warp, int row) : shared_(shared) {
        const int lane = thread_index() % 32;
        // Matrices side by side in pairs, first downwards; or first to the right.
        down_ = shared + (lane % 16 * pitch + lane / 16 * 8) * 2;
        right_ = shared + ((lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8) * 2;
        thread_ = shared + thread_index() / vectors * pitch * 2 + thread_index() % vectors * 16;
        vector_ = shared + Shape::vector + lane / 8 * pitch * 2;
        row_ = row * pitch * 2;
        warp_ = warp * 16;
        column_ = Shape::first_column(warp);
    }

    // Left operands: this warp's rows; its columns of the keys, transposed.
    template <int tile = 0>
    LINATTN_DEVICE LeftFragment<1> row(int stage, int k) const {
        return rows(stage, tile).template load<LeftFragment<1>, false>(0, k * 16);
    }
    template <int tile = Shape::key>
    LINATTN_DEVICE LeftFragment<1> key_columns(int stage, int k) const {
        return Lane{right_ + stage * Shape::stage + tile + warp_ * 2}.template load<LeftFragment<1>, true>(k * 16, 0);
    }
    // Right operands: keys as columns; values; the state; this warp's rows as columns.
    template <int tile = Shape::key>
    LINATTN_DEVICE RightFragment<1> keys(int stage, int j, int k) const {
        return Lane{right_ + stage * Shape::stage + tile}.template load<RightFragment<1>, false>(j * 16, k * 16);
    }
    template <int tile = Shape::value>
    LINATTN_DEVICE RightFragment<1> values(int stage, int k, int n) const {
        return Lane{down_ + stage * Shape::stage + tile}.template load<RightFragment<1>, true>(k * 16, column(n));
    }
    LINATTN_DEVICE RightFragment<1> state(int k, int n) const {
        return Lane{down_ + Shape::state}.template load<RightFragment<1>, true>(k * 16, column(n));
    }
    LINATTN_DEVICE RightFragment<1> transposed_state(int k, int n) const {
        return Lane{right_ + Shape::state}.template load<RightFragment<1>, false>(n * 16, k * 16);
    }
    template <int tile>
    LINATTN_DEVICE RightFragment<1> row_columns(int stage, int k) const {
        return Lane{right_ + stage * Shape::stage + tile + row_}.template load<RightFragment<1>, false>(0, k * 16);
    }
    // The parts of z for two steps: each of the eight rows of a matrix is the same eight numbers.
    LINATTN_DEVICE void vector(u32 (&pairs)[4], int k) const { load_matrices(pairs, vector_ + k * Shape::vector_rows); }
    // The biases of keys for two steps: a right operand whose first two columns hold their two parts, and whose other
    // columns are zero.
    LINATTN_DEVICE void bias_parts(u32 (&pairs)[4], int stage, int k) const {
        const int lane = thread_index() % 32, part = lane % 8 < 2 ? lane % 8 : 2;
        load_matrices(pairs, eight_parts(stage, part, lane / 8) + k * Shape::vector_rows);
    }
    LINATTN_DEVICE u16* part_of_bias(int stage, int part, int key) const {
        return reinterpret_cast<u16*>(eight_parts(stage, part, key / 8)) + key % 8;
    }
    // Of gradients: a number of the vector, and the bias of a key.
    LINATTN_DEVICE float* vector_number(int i) const { return number(shared_ + Shape::vector, i); }
    LINATTN_DEVICE float* bias(int stage, int key) const {
        return number(shared_ + stage * Shape::stage + Shape::bias, key);
    }

    // Sums of 16 x 16 as bfloat16: results in the place of this warp's rows; this warp's rows of the state.
    template <int tile = 0>
    LINATTN_DEVICE void leave(int stage, int n, const float (&x)[2][4]) const {
        store(rows(stage, tile).at(0, column(n)), x[0], x[1]);
    }
    LINATTN_DEVICE void publish(int n, const float (&left)[4], const float (&right)[4]) const {
        store(Lane{down_ + Shape::state + warp_ * pitch * 2}.at(0, column(n)), left, right);
    }
    LINATTN_DEVICE u16* number_of_vector(int row) const {
        unsigned char* const first = shared_ + Shape::vector + warp_ / 16 * Shape::vector_rows;
        return reinterpret_cast<u16*>(first + row / 8 * pitch * 2) + row % 8;
    }

    // Sixteen bytes of a row. `copied`: those that this thread copies, in its first row or in one further down. `result`:
    // those that it writes to global memory, of the rows of its warp.
    LINATTN_DEVICE Quad* copied(int tile, int stage, int further) const {
        return reinterpret_cast<Quad*>(thread_ + stage * Shape::stage + tile + further * pitch * 2);
    }
    template <int tile = 0>
    LINATTN_DEVICE const Quad* result(int stage, int further) const {
        const int lane = thread_index() % 32, row = lane / 8 + further, column = column_ + lane % 8 * 8;
        return reinterpret_cast<const Quad*>(shared_ + stage * Shape::stage + tile + row_ + (row * pitch + column) * 2);
    }
    LINATTN_DEVICE unsigned char* tile(int tile, int stage) const { return shared_ + stage * Shape::stage + tile; }

private:
    // Four numbers lie behind each row.
    LINATTN_DEVICE static float* number(unsigned char* first, int i) {
        const int row = i / 4 % 2 * pitch * 2;
        return reinterpret_cast<float*>(first + i / 8 * Shape::vector_rows + row) + i % 4;
    }
    // A part of the biases of the n-th eight keys.
    LINATTN_DEVICE unsigned char* eight_parts(int stage, int part, int n) const {
        return shared_ + stage * Shape::stage + Shape::parts + (part * (Shape::C / 8) + n) * pitch * 2;
    }
    LINATTN_DEVICE Lane rows(int stage, int tile) const { return {down_ + stage * Shape::stage + tile + row_}; }
    LINATTN_DEVICE int column(int n) const { return Shape::column(column_, n); }
    LINATTN_DEVICE static void store(unsigned char* row_of_lane, const float (&left)[4], const float (&right)[4]) {
        store_matrices(row_of_lane, pitch * 2, pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]),
                       pack_bf16(right[0], right[1]), pack_bf16(right[2], right[3]));
    }

    unsigned char *shared_, *down_, *right_, *thread_, *vector_;
    int row_, warp_, column_;
};

}  // namespace linattn
