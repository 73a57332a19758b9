// The state of a block of the lean product: each warp has 16 rows of S, with all columns, and their numbers of z.
#pragma once

#include "linattn/device/lean/shape.cuh"

namespace linattn {

// A right operand of ones: products with it are sums.
constexpr u32 ones = 0x3f803f80u;

template <class Shape>
class LeanState {
    static constexpr int D = Shape::D, C = Shape::C, tiles = D / 8, steps = C / 16;

public:
    // The keys of a chunk as left operands, and the sums of two tiles of columns.
    using Keys = LeftFragment<1>[steps];
    using Sum = float[2][4];

    // Reads the state from global memory; zeros where there is none.
    LINATTN_DEVICE void load(const StateView& view, const float* matrix, const float* vector) {
        each(view, [&](Int at, float& number) { number = matrix == nullptr ? 0.0f : matrix[at]; });
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) vector_[half] = vector == nullptr ? 0.0f : vector[row(half)];
    }

    LINATTN_DEVICE void store(const StateView& view, float* matrix, float* vector) {
        if (matrix != nullptr) each(view, [&](Int at, float& number) { matrix[at] = number; });
        if (vector == nullptr || thread_index() % 4 != 0) return;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) vector[row(half)] = vector_[half];
    }

    LINATTN_DEVICE void publish(const LeanMemory<Shape>& memory) const {
        LINATTN_UNROLL
        for (int n = 0; n < tiles; n += 2) memory.publish(n / 2, matrix_[n], matrix_[n + 1]);
        if (thread_index() % 4 != 0) return;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int in_warp = thread_index() % 32 / 4 + half * 8;
            if constexpr (Shape::gradients) *memory.vector_number(row(half)) = vector_[half];
            else *memory.number_of_vector(in_warp) = static_cast<u16>(pack_bf16(vector_[half], 0.0f));
        }
    }

    // S += sum for the n-th two tiles of columns. The sum of a chunk is separate, because the tensor cores do not round to
    // nearest: if they added to the state itself, it would drift over a long sequence.
    LINATTN_DEVICE void add(int n, const Sum& sum) {
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) matrix_[2 * n + i / 4][i % 4] += sum[i / 4][i % 4];
    }

    LINATTN_DEVICE void add_vector(const Keys& keys) {
        float sum[4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) multiply_bf16(sum, keys[k].pairs[0], ones, ones);
        vector_[0] += sum[0];
        vector_[1] += sum[2];
    }

    // The same of keys times their biases. Each part of the biases has a column, in one lane of each row.
    LINATTN_DEVICE void add_biased_vector(const Keys& keys, const LeanMemory<Shape>& memory, int stage) {
        float sum[4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < steps; k += 2) {
            u32 bias[4];
            memory.bias_parts(bias, stage, k);
            multiply_bf16(sum, keys[k].pairs[0], bias[0], bias[1]);
            multiply_bf16(sum, keys[k + 1].pairs[0], bias[2], bias[3]);
        }
        vector_[0] += sum[0] + sum[1];
        vector_[1] += sum[2] + sum[3];
    }

private:
    LINATTN_DEVICE static int row(int half) { return thread_index() / 32 * 16 + thread_index() % 32 / 4 + half * 8; }
    LINATTN_DEVICE static int column(int n) {
        return Shape::column(Shape::first_column(thread_index() / 32), n / 2) + n % 2 * 8 + thread_index() % 4 * 2;
    }

    // Calls `use(place in global memory, number)` for the numbers of S that this lane has.
    template <class Use>
    LINATTN_DEVICE void each(const StateView& view, const Use& use) {
        LINATTN_UNROLL
        for (int n = 0; n < tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) use(row(i / 2) * view.row + (column(n) + i % 2) * view.column, matrix_[n][i]);
        }
    }

    float matrix_[tiles][4];
    float vector_[2];
};

}  // namespace linattn
