// Between the two passes over a sequence in segments: turns the sums of each segment into the state that it begins
// with, and writes their total as the final state.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

// The states of all segments, (sequences * heads, segments, numbers) contiguous, each `matrix` numbers of X and behind
// them `vector` of its vector; `first` and `last` lie apart, (sequences * heads, matrix) and (sequences * heads,
// vector). Of `first` there is one for each group of heads: the first head of the group begins with it, the others with
// zeros.
struct Scan {
    float* states;
    State first, last;  // null where there is none
    Int matrix, vector;
    int group, segments;
    bool backwards;
};

constexpr int scan_threads = 256;
constexpr int scan_ahead = 8;  // segments whose numbers are loaded together: a load takes longer than all else

// One thread adds up one number over the segments, in their order.
LINATTN_KERNEL(scan_threads, 1) scan(const LINATTN_PARAMETER Scan call) {
    const Int numbers = call.matrix + call.vector;
    const Int blocks = (numbers + scan_threads - 1) / scan_threads;
    const Int sequence_and_head = block_x() / blocks;
    const Int i = block_x() % blocks * scan_threads + thread_index();
    if (i >= numbers) return;
    const bool in_matrix = i < call.matrix;
    const auto at = [&](Int state) {
        return in_matrix ? state * call.matrix + i : state * call.vector + i - call.matrix;
    };
    const float* first = in_matrix ? call.first.s : call.first.z;
    float* last = in_matrix ? call.last.s : call.last.z;
    const bool begins = first != nullptr && sequence_and_head % call.group == 0;
    float sum = begins ? first[at(sequence_and_head / call.group)] : 0.0f;
    float* states =
        call.states + (sequence_and_head * call.segments + (call.backwards ? call.segments - 1 : 0)) * numbers;
    const Int next = call.backwards ? -numbers : numbers;
    const int summed = last == nullptr ? call.segments - 1 : call.segments;  // nothing continues the last one's sum
    for (int k = 0; k < call.segments; k += scan_ahead) {
        float own[scan_ahead];
        LINATTN_UNROLL
        for (int j = 0; j < scan_ahead; ++j) own[j] = k + j < summed ? states[(k + j) * next + i] : 0.0f;
        LINATTN_UNROLL
        for (int j = 0; j < scan_ahead; ++j) {
            if (k + j < call.segments) states[(k + j) * next + i] = sum;
            sum += own[j];
        }
    }
    if (last != nullptr) last[at(sequence_and_head)] = sum;
}

}  // namespace linattn
