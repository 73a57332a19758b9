// The layouts of what the lanes of a warp exchange, position by position.
#include "testing.hpp"

namespace linattn::testing {
namespace {

LINATTN_KERNEL(64, 1) shuffle_kernel(float* across, float* from, u32* words) {
    const int thread = thread_index();
    const float x = static_cast<float>(thread);
    across[thread] = shuffle_xor(x, 5);
    from[thread] = shuffle(x, (thread * 7) % 32);
    words[thread] = shuffle(0x80000000u + thread, 31 - thread % 32);
}

LINATTN_TEST(shuffles_hand_over_the_value_of_the_lane) {
    for (int order : {0, -1, 7}) {
        float across[64], from[64];
        u32 words[64];
        emulation::set_order(order);
        run(shuffle_kernel, 64, 0, across, from, words);
        emulation::set_order(0);
        for (int i = 0; i < 64; ++i) {
            const int warp = i / 32 * 32;
            expect_equal(across[i], static_cast<float>(warp + ((i % 32) ^ 5)), "shuffle_xor");
            expect_equal(from[i], static_cast<float>(warp + (i * 7) % 32), "shuffle");
            expect_equal(words[i], 0x80000000u + warp + 31 - i % 32, "shuffle of words");
        }
    }
}

// Number (r, c) of matrix m is 64 m + 8 r + c; rows lie in shared memory in the reverse order.
LINATTN_KERNEL(32, 1) matrices_kernel(u32* plain, u32* transposed) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<u16*>(memory);
    const int lane = thread_index();
    for (int c = 0; c < 8; ++c) numbers[8 * (31 - lane) + c] = static_cast<u16>(8 * lane + c);
    LINATTN_WARP_BARRIER();
    u32 matrices[4];
    load_matrices(matrices, memory + 16 * (31 - lane));
    for (int m = 0; m < 4; ++m) plain[32 * m + lane] = matrices[m];
    load_matrices_transposed(matrices, memory + 16 * (31 - lane));
    for (int m = 0; m < 4; ++m) transposed[32 * m + lane] = matrices[m];
}

LINATTN_TEST(matrices_are_handed_out_by_pairs) {
    u32 plain[128], transposed[128];
    run(matrices_kernel, 32, 512, plain, transposed);
    for (int m = 0; m < 4; ++m) {
        for (int lane = 0; lane < 32; ++lane) {
            const u32 g = lane / 4, t = lane % 4, first = 64 * m;
            const u32 row = first + 8 * g + 2 * t, column = first + 16 * t + g;
            expect_equal(plain[32 * m + lane], row | ((row + 1) << 16), "a pair of a row");
            expect_equal(transposed[32 * m + lane], column | ((column + 8) << 16), "a pair of a column");
        }
    }
}

// a (16, 16), b (16, 8), c (16, 8), row by row; every lane takes and writes its places by the layout.
LINATTN_KERNEL(32, 1) multiply_kernel(const float* a, const float* b, float* c) {
    const int g = thread_index() / 4, t = thread_index() % 4;
    const auto a_pair = [a](int row, int k) { return pack_bf16(a[16 * row + k], a[16 * row + k + 1]); };
    const auto b_pair = [b](int k, int column) { return pack_bf16(b[8 * k + column], b[8 * (k + 1) + column]); };
    const u32 rows[4] = {a_pair(g, 2 * t), a_pair(g + 8, 2 * t), a_pair(g, 2 * t + 8), a_pair(g + 8, 2 * t + 8)};
    float *upper = c + 8 * g + 2 * t, *lower = upper + 64;
    float sums[4] = {upper[0], upper[1], lower[0], lower[1]};
    multiply_bf16(sums, rows, b_pair(2 * t, g), b_pair(2 * t + 8, g));
    upper[0] = sums[0];
    upper[1] = sums[1];
    lower[0] = sums[2];
    lower[1] = sums[3];
}

void expect_product(const float* a, const float* b, const float* c) {
    float got[128];
    for (int i = 0; i < 128; ++i) got[i] = c[i];
    run(multiply_kernel, 32, 0, a, b, static_cast<float*>(got));
    for (int i = 0; i < 128; ++i) {
        float sum = c[i];
        for (int k = 0; k < 16; ++k) sum += a[16 * (i / 8) + k] * b[8 * k + i % 8];
        expect_equal(got[i], sum, "sum " + std::to_string(i));
    }
}

LINATTN_TEST(products_of_integers_are_exact) {
    float a[256], b[128], c[128];
    for (int i = 0; i < 256; ++i) a[i] = static_cast<float>(i * 37 % 101 - 50);
    for (int i = 0; i < 128; ++i) b[i] = static_cast<float>(i * 53 % 89 - 44), c[i] = static_cast<float>(1000 + i);
    expect_product(a, b, c);
}

// One number of each factor is not zero, at every place where they meet.
LINATTN_TEST(every_position_of_a_product_is_where_it_belongs) {
    float a[256] = {}, b[128] = {}, c[128] = {};
    for (int i = 0; i < 256; ++i) {
        for (int column = 0; column < 8; ++column) {
            a[i] = 3.0f;
            b[8 * (i % 16) + column] = 5.0f;
            expect_product(a, b, c);
            a[i] = b[8 * (i % 16) + column] = 0.0f;
        }
    }
}

LINATTN_KERNEL(32, 1) misaligned_row_kernel() {
    LINATTN_SHARED(memory);
    u32 matrices[4];
    load_matrices(matrices, memory + 16 * thread_index() + (thread_index() == 9 ? 2 : 0));
}

LINATTN_KERNEL(32, 1) foreign_row_kernel(const unsigned char* global) {
    u32 matrices[4];
    load_matrices_transposed(matrices, global);
}

LINATTN_KERNEL(32, 1) late_row_kernel() {
    LINATTN_SHARED(memory);
    u32 matrices[4];
    load_matrices(matrices, memory + 16 * thread_index() + 16);
}

LINATTN_TEST(rows_must_be_aligned_and_in_shared_memory) {
    alignas(16) const unsigned char global[16] = {};
    expect_failure(
        "load_matrices was expected to get an address in shared memory aligned to 16 bytes, and got byte "
        "146",
        misaligned_row_kernel, 32, 528);
    expect_failure("load_matrices_transposed was expected to get 16 bytes within", foreign_row_kernel, 32, 512, global);
    expect_failure("within the block's 512 bytes of shared memory, and got byte 512", late_row_kernel, 32, 512);
}

}  // namespace
}  // namespace linattn::testing
