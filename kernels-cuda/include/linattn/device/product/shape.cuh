// The sizes that a kernel of the product is compiled for, how its warps share the work, and its shared memory.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

constexpr int widest_pair = 64;

template <int parts, int A, int pitch>
struct StateTileOf {
    using Type = Tile<parts, pitch, A>;
};
// Three parts of a state would take half as much again; where there is one group of rows, each number is read once.
template <int A, int pitch>
struct StateTileOf<3, A, pitch> {
    using Type = FloatTile<3, pitch, A>;
};
template <int parts, int C, int E, class TileA>
struct ResultTileOf {
    using Type = FloatTile<parts, E + 4, C>;
};
template <int C, int E, class TileA>
struct ResultTileOf<1, C, E, TileA> {
    using Type = TileA;
};

// The widths that a kernel is compiled for: A of rows and keys, E of a slice of the values, C positions of a chunk.
// `pair`: each row has two results.
template <int parts_, int A_, int E_, int C_, bool pair_ = false>
struct ProductShape {
    static constexpr int parts = parts_, A = A_, E = E_, C = C_;
    static constexpr bool pair = pair_;
    // Out: warps share the rows of a chunk, 16 each, then the columns of the slice.
    static constexpr int most_warps = A > 64 ? 8 : 4, tiles_of_rows = C / 16 * (E / 8);
    static constexpr int warps = tiles_of_rows < most_warps ? tiles_of_rows : most_warps, threads = 32 * warps;
    static constexpr int row_groups = C / 16, column_groups = warps / row_groups;
    static constexpr int out_tiles = E / 8 / column_groups;
    // Blocks that a multiprocessor holds at once, which limits the registers of each.
    static constexpr int resident = A <= 64 ? 4 : A < 256 || parts == 1 ? 2 : 1;
    // State: warps share the rows of X, then its columns; the column after the slice is the last tile of every warp.
    static constexpr int state_rows = A / 16 < warps ? A / 16 : warps, state_columns = warps / state_rows;
    static constexpr int state_row_tiles = A / 16 / state_rows, state_tiles = E / 8 / state_columns;

    // Shared memory. Pitches keep the lanes of a load on different banks. With one part, numbers are prepared where
    // they were copied to: there are two sets of tiles in turn. With more, they are copied elsewhere and split on the
    // way.
    static constexpr int buffers = parts == 1 ? 2 : 1;
    static constexpr int pitch_a = A + 8, pitch_e = E + 8, number = parts == 1 ? 2 : 4;
    using TileA = Tile<parts, pitch_a, C>;
    using TileE = Tile<parts, pitch_e, C>;
    using StateTile = typename StateTileOf<parts, A, pitch_e>::Type;
    using ResultTile = typename ResultTileOf<parts, C, E, TileA>::Type;
    static constexpr int row_tile = 0, key_tile = row_tile + TileA::bytes, value_tile = key_tile + TileA::bytes;
    static constexpr int second_tile = value_tile + TileE::bytes, tiles = second_tile + (pair ? TileE::bytes : 0);
    static constexpr int state_tile = buffers * tiles;
    static constexpr int staged_a = parts == 1 ? 0 : C * A * 4, staged_e = parts == 1 ? 0 : C * E * 4;
    static constexpr int staged_row = state_tile + StateTile::bytes, staged_key = staged_row + staged_a;
    static constexpr int staged_value = staged_key + staged_a, staged_second = staged_value + staged_e;
    // Normalizers and biases as they are staged, the biases in use, the state's vector, its parts of a chunk.
    static constexpr int vectors = staged_second + (pair ? staged_e : 0);
    // Which keys of a chunk a mask leaves, a byte each, two chunks in turn.
    static constexpr int exists = vectors + 4 * (3 * C + E + threads), shared_bytes = exists + 2 * C;
    // What passes with a derivative have: what it is taken at, two chunks in turn; and of queries the outputs. They are
    // staged where the memory is there for them.
    static constexpr bool stages_origin = A <= widest_pair && !pair;
    static constexpr int output = shared_bytes, origin = output + C * A * number, origins = C * E * number;
    static constexpr int shared_bytes_with_origin = stages_origin ? origin + 2 * origins : shared_bytes;

    static_assert(C <= threads);
    static_assert(64 % C == 0, "segments are whole chunks");
    static_assert(row_groups * column_groups == warps && state_rows * state_columns == warps);
    static_assert(A % (16 * state_rows) == 0 && E % (8 * column_groups) == 0 && E <= A && threads % E == 0);
    static_assert(state_tiles % 2 == 0, "two tiles of columns at a time");
    static_assert(parts == 1 || column_groups > 1, "float32 results lie across the rows of other warps");
    static_assert(ResultTile::bytes <= TileA::bytes);
    static_assert(!pair || (A == E && out_tiles % 2 == 0), "one state, read in both directions");
};

// The shared memory of a block.
template <class Shape>
struct ProductMemory {
    static constexpr int parts = Shape::parts;
    using TileA = typename Shape::TileA;
    using TileE = typename Shape::TileE;
    using Result = typename Shape::ResultTile;

    unsigned char* shared;
    int buffer = 0;  // which set of tiles is in use, as its offset

    template <class TileOf>
    LINATTN_DEVICE TileOf tile(int offset) const {
        return {reinterpret_cast<decltype(TileOf::data)>(shared + offset)};
    }
    LINATTN_DEVICE TileA rows() const { return tile<TileA>(Shape::row_tile + buffer); }
    LINATTN_DEVICE TileA keys() const { return tile<TileA>(Shape::key_tile + buffer); }
    LINATTN_DEVICE TileE values() const { return tile<TileE>(Shape::value_tile + buffer); }
    LINATTN_DEVICE TileE second_rows() const { return tile<TileE>(Shape::second_tile + buffer); }
    LINATTN_DEVICE auto state() const { return tile<typename Shape::StateTile>(Shape::state_tile); }
    // Where the rows were.
    LINATTN_DEVICE Result results(bool second) const {
        return tile<Result>((second ? Shape::second_tile : Shape::row_tile) + buffer);
    }

    LINATTN_DEVICE int other_buffer() const { return parts == 1 ? Shape::tiles - buffer : 0; }

    // Where a chunk is copied to: with one part into a set of tiles.
    LINATTN_DEVICE Staged staged(int tile, int elsewhere, int pitch, int width, int set) const {
        if (parts == 1) return {shared + tile + set, pitch};
        return {shared + elsewhere, width};
    }
    LINATTN_DEVICE Staged staged_rows(int set) const {
        return staged(Shape::row_tile, Shape::staged_row, Shape::pitch_a, Shape::A, set);
    }
    LINATTN_DEVICE Staged staged_keys(int set) const {
        return staged(Shape::key_tile, Shape::staged_key, Shape::pitch_a, Shape::A, set);
    }
    LINATTN_DEVICE Staged staged_values(int set) const {
        return staged(Shape::value_tile, Shape::staged_value, Shape::pitch_e, Shape::E, set);
    }
    LINATTN_DEVICE Staged staged_second_rows(int set) const {
        return staged(Shape::second_tile, Shape::staged_second, Shape::pitch_e, Shape::E, set);
    }
    LINATTN_DEVICE Staged staged_output() const { return {shared + Shape::output, Shape::A}; }
    LINATTN_DEVICE Staged staged_origin(int turn) const {
        return {shared + Shape::origin + turn * Shape::origins, Shape::E};
    }

    LINATTN_DEVICE unsigned char* exists(int turn) const { return shared + Shape::exists + turn * Shape::C; }

    // Float32 vectors.
    LINATTN_DEVICE float* vectors() const { return reinterpret_cast<float*>(shared + Shape::vectors); }
    LINATTN_DEVICE float* staged_normalizer() const { return vectors(); }
    LINATTN_DEVICE float* staged_bias() const { return vectors() + Shape::C; }
    LINATTN_DEVICE float* bias() const { return vectors() + 2 * Shape::C; }
    LINATTN_DEVICE float* state_vector() const { return vectors() + 3 * Shape::C; }
    LINATTN_DEVICE float& vector_part(int thread) const { return vectors()[3 * Shape::C + Shape::E + thread]; }
};

}  // namespace linattn
