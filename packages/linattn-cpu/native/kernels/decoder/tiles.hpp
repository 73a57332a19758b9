// Products in the tile registers of AMX, for many rows. A tile has 16 rows of 64 bytes. One instruction multiplies 16
// rows of activations by 16 outputs of a panel, over 16 groups of inputs. Tiles are loaded from the panels as they are
// packed; only the last groups, where they do not fill a tile, are copied and padded by 0.
#pragma once

#include "kernels/decoder/products.hpp"

#ifdef LINATTN_TILES

LINATTN_BEGIN
namespace decoding {

inline constexpr std::int64_t kAmxRows = 16, kAmxGroups = 16, kAmxRowBytes = 64;

// With this many rows and more, a whole tile takes less time than the rows in vectors.
inline constexpr std::int64_t kAmxFewestRows = 9;

// The tile registers of this thread, from construction to destruction. Registers 0 to 3 hold sums, 4 and 5 activations,
// 6 and 7 weights.
class TileRegisters {
public:
    TileRegisters() {
        // The layout that the processor expects: a palette, then for each register the bytes of a row and the number
        // of rows.
        struct alignas(64) Shapes {
            std::uint8_t palette = 1, other[15] = {};
            std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        };
        // Static: GCC knows only that the first 8 bytes are read, and would not write the others of a local variable.
        static const Shapes shapes;
        _tile_loadconfig(&shapes);
    }
    ~TileRegisters() { _tile_release(); }
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;
};

// The products of bfloat16 numbers. The intrinsics take the numbers of registers as literals.
struct Bf16Tiles {
    LINATTN_INLINE void add_first() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    LINATTN_INLINE void add_second() {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
};

// The products of unsigned bytes of activations and signed bytes of weights.
struct ByteTiles {
    LINATTN_INLINE void add_first() {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
    }
    LINATTN_INLINE void add_second() {
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
};

// Up to two tiles of activations, whose rows are `stride` bytes apart.
struct Activations {
    const char *first, *second;  // second: null for one tile
    std::int64_t stride;
};

template <class Tiles>
LINATTN_INLINE void add_groups(const Activations& x, std::int64_t group, const char* groups) {
    _tile_loadd(6, groups, kGroupBytes);
    _tile_loadd(7, groups + kAmxRowBytes, kGroupBytes);
    _tile_loadd(4, x.first + group * 4, x.stride);
    Tiles::add_first();
    if (x.second == nullptr) return;
    _tile_loadd(5, x.second + group * 4, x.stride);
    Tiles::add_second();
}

// Sums of one tile of activations and a panel: 32-bit numbers of the type that the products are summed in.
template <class T>
using TileSums = T[kAmxRows][kPanel];

// The sums of the products of x with a panel, of each tile of x in one of `sums`.
template <class Tiles, class T>
static void multiply_panel(const Activations& x, const PackedMatrix& matrix, std::int64_t panel, std::int64_t groups,
                           TileSums<T>* sums) {
    const char* const weights = static_cast<const char*>(matrix.panels) + panel * groups * kGroupBytes;
    const std::int64_t whole = groups / kAmxGroups * kAmxGroups;
    // The groups after the last whole tile, and zeros.
    alignas(64) char rest[kAmxGroups * kGroupBytes];
    if (whole < groups) {
        const std::int64_t bytes = (groups - whole) * kGroupBytes;
        std::memcpy(rest, weights + whole * kGroupBytes, static_cast<std::size_t>(bytes));
        std::memset(rest + bytes, 0, sizeof rest - static_cast<std::size_t>(bytes));
    }
    __asm__ volatile("" ::: "memory");  // GCC does not know that _tile_loadd reads memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t group = 0; group < whole; group += kAmxGroups) {
        add_groups<Tiles>(x, group, weights + group * kGroupBytes);
    }
    if (whole < groups) add_groups<Tiles>(x, whole, rest);
    _tile_stored(0, sums[0], kGroupBytes);
    _tile_stored(1, sums[0][0] + W<float>, kGroupBytes);
    if (x.second == nullptr) return;
    _tile_stored(2, sums[1], kGroupBytes);
    _tile_stored(3, sums[1][0] + W<float>, kGroupBytes);
}

// Weights and activations in bfloat16: two tiles of rows share the loads of weights.
struct TilesOfBf16 {
    static constexpr std::int64_t kRows = 2 * kAmxRows;

    static void multiply(const Operand& x, std::int64_t row, std::int64_t count, const PackedMatrix& matrix,
                         std::int64_t panel, float (*to)[kPanel]) {
        const std::int64_t stride = 2 * x.width;
        const char* const first = static_cast<const char*>(x.rows) + row * stride;
        const char* const second = count > kAmxRows ? first + kAmxRows * stride : nullptr;
        multiply_panel<Bf16Tiles, float>({first, second, stride}, matrix, panel, (matrix.inputs + 1) / 2,
                                         reinterpret_cast<TileSums<float>*>(to));
    }
};

// 8-bit weights and 16-bit activations, whose high and low bytes are one tile each.
struct TilesOfBytes {
    static constexpr std::int64_t kRows = kAmxRows;

    static void multiply(const Operand& x, std::int64_t row, std::int64_t count, const PackedMatrix& matrix,
                         std::int64_t panel, float (*to)[kPanel]) {
        const std::int64_t stride = 2 * x.width;
        const char* const high = static_cast<const char*>(x.rows) + row * stride;
        alignas(64) TileSums<std::int32_t> sums[2];
        multiply_panel<ByteTiles, std::int32_t>({high, high + x.width, stride}, matrix, panel, (matrix.inputs + 3) / 4,
                                                sums);
        for (int half = 0; half < kPanel; half += W<float>) {
            const Int32s offset = offset_of(matrix, {0, matrix.inputs}, panel * kPanel + half);
            for (std::int64_t r = 0; r < count; ++r) {
                const Int32s tops = load(sums[0][r] + half) - offset, rests = load(sums[1][r] + half);
                store(to[r] + half, joined(tops, rests) * x.scales[row + r]);
            }
        }
    }
};

}  // namespace decoding
LINATTN_END

#endif  // LINATTN_TILES
