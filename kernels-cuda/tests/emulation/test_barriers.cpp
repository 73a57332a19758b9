// Barriers and collectives that not all reach; that a failed kernel leaves nothing behind.
#include "testing.hpp"

namespace linattn::testing {
namespace {

LINATTN_KERNEL(96, 1) left_kernel() {
    if (thread_index() == 70) return;
    LINATTN_BLOCK_BARRIER();
}

constexpr int second_barrier = __LINE__ + 5;
LINATTN_KERNEL(96, 1) two_barriers_kernel() {
    if (thread_index() < 32) {
        LINATTN_BLOCK_BARRIER();
    } else {
        LINATTN_BLOCK_BARRIER();
    }
}

LINATTN_KERNEL(64, 1) lane_left_kernel() {
    if (thread_index() == 35) return;
    LINATTN_WARP_BARRIER();
}

LINATTN_KERNEL(64, 1) lane_elsewhere_kernel(float* out) {
    float x = 1.0f;
    if (thread_index() == 40) {
        LINATTN_WARP_BARRIER();
    } else {
        x = shuffle_xor(x, 1);
    }
    out[thread_index()] = x;
}

LINATTN_KERNEL(64, 1) lane_at_barrier_kernel(float* out) {
    float x = 1.0f;
    if (thread_index() != 8) x = shuffle(x, 1);
    LINATTN_BLOCK_BARRIER();
    out[thread_index()] = x;
}

LINATTN_KERNEL(32, 1) two_shuffles_kernel(float* out) {
    float x = 1.0f;
    if (thread_index() < 16) {
        x = shuffle(x, 1);
    } else {
        x = shuffle(x, 2);
    }
    out[thread_index()] = x;
}

// The sum over the block's threads, by halves.
LINATTN_KERNEL(128, 1) sum_kernel(float* out) {
    LINATTN_SHARED(memory);
    auto* sums = reinterpret_cast<float*>(memory);
    const int thread = thread_index();
    sums[thread] = static_cast<float>(thread + 128 * block_x() + 1000 * block_y());
    for (int half = 64; half > 0; half /= 2) {
        LINATTN_BLOCK_BARRIER();
        if (thread < half) sums[thread] += sums[thread + half];
    }
    if (thread == 0) out[4 * block_y() + block_x()] = sums[0];
}

void expect_sums() {
    for (int order : {0, -1, 3, 1234567}) {
        float out[8] = {};
        emulation::set_order(order);
        const Status status = LINATTN_LAUNCH("sum", sum_kernel, 4, 2, 128, 512, {}, static_cast<float*>(out));
        emulation::set_order(0);
        expect_equal(status.error, 0, "the launch's error");
        for (int i = 0; i < 8; ++i) {
            const float mean = 63.5f + 128 * (i % 4) + 1000 * (i / 4);
            expect_equal(out[i], 128.0f * mean, "the sum of block " + std::to_string(i));
        }
    }
}

LINATTN_TEST(barriers_order_the_threads_of_a_block) { expect_sums(); }

LINATTN_TEST(a_barrier_that_a_thread_does_not_reach_is_found) {
    expect_failure(
        "the block barrier was expected to be reached by all 96 threads of the block, and thread 70 has "
        "left the kernel",
        left_kernel, 96, 0);
    expect_failure("thread 32 is at the block barrier, test_barriers.cpp:" + std::to_string(second_barrier),
                   two_barriers_kernel, 96, 0);
}

LINATTN_TEST(a_collective_that_a_lane_does_not_reach_is_found) {
    float out[64];
    float* to = out;
    expect_failure("the warp barrier was expected to be reached by all 32 lanes of the warp, and thread 35 has left",
                   lane_left_kernel, 64, 0);
    expect_failure(
        "shuffle_xor was expected to be reached by all 32 lanes of the warp, and thread 40 is at the warp "
        "barrier, test_barriers.cpp:",
        lane_elsewhere_kernel, 64, 0, to);
    expect_failure(
        "shuffle was expected to be reached by all 32 lanes of the warp, and thread 8 is at the block "
        "barrier",
        lane_at_barrier_kernel, 64, 0, to);
    expect_failure("and thread 16 is at shuffle, test_barriers.cpp:", two_shuffles_kernel, 32, 0, to);
}

LINATTN_TEST(a_launch_after_a_failure_works) {
    for (int i = 0; i < 20; ++i) {
        expect_failure("has left the kernel", left_kernel, 128, 512);
        expect_sums();
    }
}

LINATTN_KERNEL(32, 1) empty_kernel(int) {}

LINATTN_TEST(a_launch_that_no_gpu_takes_is_refused) {
    const auto error = [](Int x, int y, int threads, int shared) {
        const Status status = LINATTN_LAUNCH("empty", empty_kernel, x, y, threads, shared, {}, 0);
        expect((status.kernel == nullptr) == (status.error == 0), "the kernel was expected to be named with an error");
        return status.error;
    };
    expect_equal(error(1, 1, 32, 232448), 0, "the error of a launch at the limit");
    expect_equal(error(1, 1, 32, 232449), 1, "the error of too much shared memory");
    expect_equal(error(1, 1, 48, 0), 9, "the error of half a warp");
    expect_equal(error(1, 1, 1056, 0), 9, "the error of too many threads");
    expect_equal(error(0, 1, 32, 0), 9, "the error of an empty grid");
    expect_equal(error(1, 65536, 32, 0), 9, "the error of too many rows of blocks");
    expect_equal(error(1ll << 31, 1, 32, 0), 9, "the error of too many blocks");
    emulation::set_shared_limit(49152);
    const int refused = error(1, 1, 32, 49153);
    emulation::set_shared_limit(227 << 10);
    expect_equal(refused, 1, "the error of more shared memory than was set");
}

}  // namespace
}  // namespace linattn::testing
