// Packs weights in the order in which the products read them; see `PackedMatrix`.
#pragma once

#include "decoder.hpp"
#include "kernels/convert.hpp"
#include "kernels/schedule.hpp"

LINATTN_BEGIN
namespace decoding {

// The outputs of a panel: two registers of sums for each row of inputs.
inline constexpr int kPanel = 2 * W<float>;

constexpr std::int64_t panels_of(std::int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// The number of inputs that share a word of 32 bits.
constexpr int group_of(WeightFormat format) {
    return format == WeightFormat::float32 ? 1 : format == WeightFormat::bfloat16 ? 2 : 4;
}

// What a machine multiplies and sums in one instruction, beside float32: groups of four 8-bit integers, or pairs of
// 16-bit integers at least; and pairs of bfloat16.
#if defined(__AVX512VNNI__)
#define LINATTN_BYTES
#elif defined(__SSE2__) || defined(__wasm_simd128__)
#define LINATTN_PAIRS
#endif
#ifdef __AVX512BF16__
#define LINATTN_BF16
#endif
// The build for AMX defines LINATTN_TILES: tiles of bfloat16 and of 8-bit integers.
#if defined(LINATTN_TILES) && !(defined(__AMX_BF16__) && defined(__AMX_INT8__))
#error "LINATTN_TILES: expected the compiler's flags for AMX"
#endif

// The byte of input i of a group in its word. With pairs, inputs 0 and 1 are in bytes 0 and 2, and 2 and 3 in 1 and 3.
constexpr int place_of(int i) {
#ifdef LINATTN_PAIRS
    return i % 2 * 2 + i / 2;
#else
    return i;
#endif
}

// The number of 32-bit words in a panel.
constexpr std::int64_t panel_words(WeightFormat format, std::int64_t inputs) {
    return (inputs + group_of(format) - 1) / group_of(format) * kPanel;
}

// Bytes of a whole packed matrix.
inline std::int64_t packed_bytes(WeightFormat format, std::int64_t inputs, std::int64_t outputs) {
    return panels_of(outputs) * panel_words(format, inputs) * 4;
}

// A panel's weights for a few inputs, float32, in the cache: so that the source is read in whole cache lines, whatever
// its strides, and the panel is written in order.
inline constexpr int kBlockInputs = 16;
using Block = float[kBlockInputs][kPanel];

// Reads a block; places past the last input or output become 0.
static void read_block(const MatrixSource& from, const PackedMatrix& matrix, std::int64_t output, std::int64_t input,
                       Block& block) {
    const std::int64_t outputs = matrix.outputs - output, inputs = matrix.inputs - input;
    for (int j = 0; j < kPanel; ++j) {
        const float* source = from.data + (output + j) * from.output_stride + input * from.input_stride;
        for (int k = 0; k < kBlockInputs; ++k) {
            block[k][j] = j < outputs && k < inputs ? source[k * from.input_stride] : 0.0f;
        }
    }
}

// For each output: the factor that makes its largest weight 127 or -127, and the weight of the integer 1.
struct Scales {
    Vec<float> inverse[2], scale[2];
};
static Scales scales_of(const MatrixSource& from, const PackedMatrix& matrix, std::int64_t output) {
    Vec<float> largest[2] = {}, poison[2] = {};
    Block block;
    for (std::int64_t input = 0; input < matrix.inputs; input += kBlockInputs) {
        read_block(from, matrix, output, input, block);
        for (const auto& row : block) {
            for (int half = 0; half < 2; ++half) {
                const Vec<float> x = load(row + half * W<float>), size = x < 0.0f ? -x : x;
                largest[half] = size > largest[half] ? size : largest[half];
                poison[half] += x * 0.0f;  // NaN where a weight is NaN or infinite
            }
        }
    }
    Scales scales;
    for (int half = 0; half < 2; ++half) {
        const Vec<float> inverse = 127.0f / largest[half];
        scales.inverse[half] = largest[half] > 0.0f && poison[half] == 0.0f ? inverse : Vec<float>{};
        scales.scale[half] = largest[half] / 127.0f + poison[half];
    }
    return scales;
}

// The bits of a weight, shifted to the place of input i in its word.
template <WeightFormat F>
LINATTN_INLINE UInt32s word_part(Vec<float> x, int i, Vec<float> inverse, Int32s& sum) {
    if constexpr (F == WeightFormat::float32) return bits<UInt32s>(x);
    if constexpr (F == WeightFormat::bfloat16) return narrow_bf16(x) << (16 * i);
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
    const Vec<float> round = broadcast(0x1.8p23f);
    const UInt32s rounded = bits<UInt32s>(x * inverse + round) - bits<UInt32s>(round);
    const UInt32s level = rounded + 127u <= 254u ? rounded : UInt32s{};  // 0 for a weight that is not finite
    sum += bits<Int32s>(level);
    return (level & 255u) << (8 * place_of(i));
}

// The number of entries in `PackedMatrix::sums` of int8 weights.
inline std::int64_t packed_sums(std::int64_t inputs, std::int64_t outputs) {
#ifdef LINATTN_BYTES
    return (panels_of(inputs) + 1) * round_up(outputs, kPanel);
#else
    (void)inputs, (void)outputs;
    return 0;
#endif
}

#ifdef LINATTN_BYTES

static_assert(kPanel % kBlockInputs == 0, "sums are stored between blocks");

// Where the sums of the integers of inputs before `input`, a multiple of kPanel, begin for the panel of `output`.
LINATTN_INLINE std::int32_t* sums_before(const PackedMatrix& matrix, std::int64_t input, std::int64_t output) {
    return matrix.sums + input / kPanel * round_up(matrix.outputs, kPanel) + output;
}

LINATTN_INLINE void store_sums(const PackedMatrix& matrix, std::int64_t input, std::int64_t output,
                               const Int32s (&sums)[2]) {
    if (input % kPanel != 0) return;
    for (int half = 0; half < 2; ++half) store(sums_before(matrix, input, output) + half * W<float>, sums[half]);
}

#else
static void store_sums(const PackedMatrix&, std::int64_t, std::int64_t, const Int32s (&)[2]) {}
#endif  // LINATTN_BYTES

template <WeightFormat F>
static void pack_panel(const MatrixSource& from, const PackedMatrix& matrix, std::int64_t panel) {
    constexpr int kGroup = group_of(F);
    const std::int64_t output = panel * kPanel;
    auto* to = static_cast<std::uint32_t*>(matrix.panels) + panel * panel_words(F, matrix.inputs);
    Scales scales{};
    if constexpr (F == WeightFormat::int8) scales = scales_of(from, matrix, output);
    Int32s sums[2] = {};
    Block block;
    for (std::int64_t input = 0; input < matrix.inputs; input += kBlockInputs) {
        if constexpr (F == WeightFormat::int8) store_sums(matrix, input, output, sums);
        read_block(from, matrix, output, input, block);
        for (int k = 0; k < kBlockInputs && input + k < matrix.inputs; k += kGroup) {
            for (int half = 0; half < 2; ++half, to += W<float>) {
                UInt32s word{};
                for (int i = 0; i < kGroup; ++i) {
                    const Vec<float> x = load(block[k + i] + half * W<float>);
                    word |= word_part<F>(x, i, scales.inverse[half], sums[half]);
                }
                store_as(to, word);
            }
        }
    }
    if constexpr (F == WeightFormat::int8) {
        for (int half = 0; half < 2; ++half) {
            store(matrix.scales + output + half * W<float>, scales.scale[half]);
        }
        store_sums(matrix, round_up(matrix.inputs, kPanel), output, sums);
    }
}

static void pack_panel(const MatrixSource& from, WeightFormat format, const PackedMatrix& matrix, std::int64_t panel) {
    switch (format) {
        case WeightFormat::float32: return pack_panel<WeightFormat::float32>(from, matrix, panel);
        case WeightFormat::bfloat16: return pack_panel<WeightFormat::bfloat16>(from, matrix, panel);
        case WeightFormat::int8: return pack_panel<WeightFormat::int8>(from, matrix, panel);
    }
}

// Fills the panels, scales and sums of `matrix`, whose memory is allocated.
inline void pack_matrix(const MatrixSource& source, WeightFormat format, const PackedMatrix& matrix, int threads) {
    share(panels_of(matrix.outputs), threads, 0,
          [&](std::int64_t panel, char*) { pack_panel(source, format, matrix, panel); });
}

}  // namespace decoding
LINATTN_END
