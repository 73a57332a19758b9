// Asynchronous copies: when they arrive, what they read, and what they refuse.
#include <memory>

#include "testing.hpp"

namespace linattn::testing {
namespace {

// Two groups of one copy each; what the thread sees of both at each moment.
LINATTN_KERNEL(32, 1) groups_kernel(const float* in, float* out) {
    LINATTN_SHARED(memory);
    auto* mine = reinterpret_cast<float*>(memory) + 8 * thread_index();
    const auto look = [mine, out](int moment) {
        if (thread_index() == 5) out[2 * moment] = mine[0], out[2 * moment + 1] = mine[4];
    };
    mine[0] = mine[4] = -1.0f;
    copy16(mine, in, 16);
    copies_wait<0>();
    look(0);  // not committed: not waited for
    copies_commit();
    copy16(mine + 4, in + 4, 16);
    copies_commit();
    look(1);
    copies_wait<1>();
    look(2);
    copies_commit();  // an empty group counts
    copies_wait<1>();
    look(3);
}

LINATTN_TEST(copies_arrive_when_their_group_is_waited_for) {
    alignas(16) const float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float out[8];
    run(groups_kernel, 32, 1024, static_cast<const float*>(in), static_cast<float*>(out));
    const auto missing = [&out](int i) { return out[i] != out[i]; };
    expect(missing(0), "a copy that was not committed was expected to be missing");
    expect_equal(out[1], -1.0f, "what no copy has touched");
    expect(missing(2) && missing(3), "copies that were not waited for were expected to be missing");
    expect_equal(out[4], 1.0f, "the first group after waiting for all but one");
    expect(missing(5), "the second group was expected to be missing");
    expect_equal(out[7], 5.0f, "the second group when an empty one follows");
}

LINATTN_KERNEL(32, 1) part_kernel(const unsigned char* in, unsigned char* out, int bytes) {
    LINATTN_SHARED(memory);
    if (thread_index() > 0) return;
    copy16(memory, in, bytes);
    copy4(memory + 16, in, bytes >= 4);
    copies_commit();
    copies_wait<0>();
    for (int i = 0; i < 20; ++i) out[i] = memory[i];
}

// The bytes end where their memory ends, so that AddressSanitizer sees one too many.
LINATTN_TEST(a_part_of_a_copy_is_read_and_the_rest_is_zero) {
    for (int bytes = 0; bytes <= 16; ++bytes) {
        const std::unique_ptr<unsigned char[]> in(new unsigned char[bytes]);
        for (int i = 0; i < bytes; ++i) in[i] = 7;
        unsigned char out[20];
        run(part_kernel, 32, 20, static_cast<const unsigned char*>(in.get()), static_cast<unsigned char*>(out), bytes);
        for (int i = 0; i < 16; ++i) expect_equal<int>(out[i], i < bytes ? 7 : 0, "byte " + std::to_string(i));
        for (int i = 16; i < 20; ++i) expect_equal<int>(out[i], bytes >= 4 ? 7 : 0, "byte " + std::to_string(i));
    }
}

LINATTN_KERNEL(32, 1) copy16_kernel(const unsigned char* in, int to, int from, int bytes) {
    LINATTN_SHARED(memory);
    copy16(memory + to, in + from, bytes);
    copies_commit();
    copies_wait<0>();
}

LINATTN_KERNEL(32, 1) copy4_kernel(const unsigned char* in, int to, int from) {
    LINATTN_SHARED(memory);
    copy4(memory + to, in + from, true);
    copies_commit();
    copies_wait<0>();
}

LINATTN_KERNEL(32, 1) abandoned_kernel(const unsigned char* in) {
    LINATTN_SHARED(memory);
    copy16(memory, in, 16);
    copies_commit();
}

LINATTN_TEST(copies_that_a_gpu_would_not_make_are_found) {
    alignas(16) const unsigned char bytes[64] = {};
    const unsigned char* in = bytes;
    expect_failure("copy16 was expected to get an address in shared memory aligned to 16 bytes, and got byte 8",
                   copy16_kernel, 32, 64, in, 8, 0, 16);
    expect_failure(
        "copy16 was expected to read from an address aligned to 16 bytes, and got one that is 4 bytes "
        "further",
        copy16_kernel, 32, 64, in, 0, 4, 0);
    expect_failure("copy16: expected to read 0 to 16 bytes, got 17", copy16_kernel, 32, 64, in, 0, 0, 17);
    expect_failure("within the block's 64 bytes of shared memory, and got byte 64", copy16_kernel, 32, 64, in, 64, 0,
                   16);
    expect_failure("copy4 was expected to get an address in shared memory aligned to 4 bytes", copy4_kernel, 32, 64, in,
                   2, 0);
    expect_failure("copy4 was expected to read from an address aligned to 4 bytes", copy4_kernel, 32, 64, in, 0, 3);
    expect_failure("every copy was expected to be waited for, and thread 0 left", abandoned_kernel, 32, 64, in);
}

LINATTN_KERNEL(32, 1) fresh_kernel(float* out) {
    LINATTN_SHARED(memory);
    auto* mine = reinterpret_cast<float*>(memory) + thread_index();
    out[32 * block_x() + thread_index()] = *mine;
    *mine = 1.0f;
}

LINATTN_TEST(shared_memory_starts_as_nan_in_every_block) {
    float out[64] = {};
    LINATTN_LAUNCH("fresh", fresh_kernel, 2, 1, 32, 128, {}, static_cast<float*>(out));
    for (float x : out) expect(x != x, "NaN was expected where nothing was written");
}

}  // namespace
}  // namespace linattn::testing
