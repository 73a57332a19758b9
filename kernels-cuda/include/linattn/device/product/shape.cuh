// The sizes that a kernel of the product is compiled for, how its warps share the work, and its shared memory.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

constexpr int widest_relay = 128;

// The widths that a kernel is compiled for: A of rows and keys, E of a slice of the values, C positions of a chunk.
template <int parts_, int A_, int E_, int C_>
struct ProductShape {
    static constexpr int parts = parts_, A = A_, E = E_, C = C_;
    static constexpr int warps = A > 64 ? 8 : 4, threads = 32 * warps;
    // Blocks that a multiprocessor holds at once, which limits the registers of each.
    static constexpr int resident = parts > 1 || A > 64 ? 1 : 2;
    // Whether segments may pass states on, for which a block holds two states at once.
    static constexpr bool relays = A <= widest_relay;
    // Out: warps share the rows of a chunk, 16 each, then the columns of the slice.
    static constexpr int row_groups = C / 16, column_groups = warps / row_groups;
    static constexpr int out_tiles = E / 8 / column_groups;
    // State: warps share the rows of X, then its columns; the column after the slice is the last tile of every warp.
    static constexpr int state_rows = A / 16 < warps ? A / 16 : warps, state_columns = warps / state_rows;
    static constexpr int state_row_tiles = A / 16 / state_rows, state_tiles = E / 8 / state_columns;
    // Shared memory. Pitches keep the lanes of a load on different banks. With one part, numbers are prepared where
    // they were copied to: there are two sets of tiles in turn. With more, they are copied elsewhere and widened on the
    // way.
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
    // Normalizers and biases as they are staged, the biases in use, the state's vector, its parts of a chunk. Those of
    // bfloat16's 64 dims are in the padding of the first two tiles: capability 7.5 has 64 KiB and no more.
    static constexpr bool parts_in_padding = parts == 1 && A == 64;
    static constexpr int shared_bytes = vectors + 4 * (3 * C + E + (parts_in_padding ? 0 : threads));
    static_assert(!parts_in_padding || threads <= 2 * C, "one number in each row of two tiles");
    static_assert(C <= threads);
    static_assert(64 % C == 0, "segments are whole chunks");
    static_assert(row_groups * column_groups == warps && state_rows * state_columns == warps);
    static_assert(A % (16 * state_rows) == 0 && E % (8 * column_groups) == 0 && E <= A && threads % E == 0);
};

// The shared memory of a block.
template <class Shape>
struct ProductMemory {
    static constexpr int parts = Shape::parts;
    using TileA = Tile<parts, Shape::pitch_a>;
    using TileE = Tile<parts, Shape::pitch_e>;

    unsigned char* shared;
    int buffer = 0;  // which set of tiles is in use, as its offset

    template <class TileOf>
    LINATTN_DEVICE TileOf tile(int offset) const {
        return {reinterpret_cast<Element<parts>*>(shared + offset)};
    }
    LINATTN_DEVICE TileA rows() const { return tile<TileA>(Shape::row_tile + buffer); }
    LINATTN_DEVICE TileA keys() const { return tile<TileA>(Shape::key_tile + buffer); }
    LINATTN_DEVICE TileE values() const { return tile<TileE>(Shape::value_tile + buffer); }
    LINATTN_DEVICE TileE state() const { return tile<TileE>(Shape::state_tile); }

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

    // Float32 vectors.
    LINATTN_DEVICE float* vectors() const { return reinterpret_cast<float*>(shared + Shape::vectors); }
    LINATTN_DEVICE float* staged_normalizer() const { return vectors(); }
    LINATTN_DEVICE float* staged_bias() const { return vectors() + Shape::C; }
    LINATTN_DEVICE float* bias() const { return vectors() + 2 * Shape::C; }
    LINATTN_DEVICE float* state_vector() const { return vectors() + 3 * Shape::C; }
    LINATTN_DEVICE float& vector_part(int thread) const {
        if (!Shape::parts_in_padding) return vectors()[3 * Shape::C + Shape::E + thread];
        return *reinterpret_cast<float*>(shared + (thread * Shape::pitch_a + Shape::A) * Shape::element);
    }
};

}  // namespace linattn
