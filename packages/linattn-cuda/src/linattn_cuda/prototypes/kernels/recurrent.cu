// Rung 1, `recurrent`: the paper's algorithm. One block walks one head, one position at a time.
//
// The idea. Equations 18 to 20 as they stand: S += phi(k) v^T, z += phi(k), out = phi(q)^T S / (phi(q)^T z + eps). S
// never leaves the chip: thread m keeps column m of it in registers, so that neither S nor a sum ever needs another
// thread. The normalizer costs no code of its own: let the values have one more column, of ones; the S of that column
// is z, and its output is the denominator.
//
// What is fused. The paper's library computes the numerator in such a kernel, and leaves the rest to tensor operations
// outside: phi(Q) and phi(K) are written to memory and read back, a cumulative sum over phi(K), again N x D, makes the
// denominators, and a last pass divides. Here all of it is this loop: q, k and v are read once, out is written once.
//
// What binds. Latency. A position costs two barriers and a trip to memory, about a microsecond, and the next one cannot
// start before; a GPU with 132 multiprocessors and 8 heads stands idle but for 8 of them. The time is N times that
// microsecond, whatever the chip's bandwidth. The next rung takes many positions a step.
#pragma once

#include "ladder.cuh"

namespace linattn::prototypes {

// One thread a column, and one for the column of ones, in whole warps.
constexpr int recurrent_threads(int columns) { return (columns + 1 + 31) / 32 * 32; }

template <Dtype dtype, int D, int M>
LINATTN_KERNEL(recurrent_threads(M), 1)
recurrent(Call call) {
    constexpr int threads = recurrent_threads(M);
    LINATTN_SHARED(shared);
    float* query = reinterpret_cast<float*>(shared);  // phi(q), phi(k) of one position; one denominator
    float* key = query + D;
    float* denominator = key + D;

    const Heads<dtype> head(call);
    const int m = thread_index();
    float state[D] = {};  // column m of S; where m = M, z
    for (Int i = 0; i < call.length; ++i) {
        for (int d = m; d < D; d += threads) {
            query[d] = head.query.read_feature(call.map, i, d);
            key[d] = head.key.read_feature(call.map, i, d);
        }
        const float value = m < M ? head.value.read(i, m) : 1.0f;
        LINATTN_BLOCK_BARRIER();

        float sum = 0.0f;
        LINATTN_UNROLL
        for (int d = 0; d < D; ++d) {
            state[d] += key[d] * value;
            sum += query[d] * state[d];
        }
        if (m == M) *denominator = head.normalizer[i] = sum + call.eps;
        LINATTN_BLOCK_BARRIER();

        if (m < M) head.out.write(i, m, sum / *denominator);
    }
}

}  // namespace linattn::prototypes
