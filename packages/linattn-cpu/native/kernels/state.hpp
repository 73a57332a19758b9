// S and z in scratch, padded; loaded from and saved to the caller's tensors.
#pragma once

#include "chunks.hpp"

LINATTN_BEGIN

// A matrix that is a sum over the sequence, with Kahan's compensation for its rounding errors.
template <class T>
struct Matrix {
    std::int64_t rows, width;  // padded
    T *sum, *compensation;

    Matrix(Arena& arena, std::int64_t rows, std::int64_t width)
        : rows(padded<T>(rows)),
          width(padded<T>(width)),
          sum(arena.take<T>(this->rows * this->width)),
          compensation(arena.take<T>(this->rows * this->width)) {}

    void clear() const {
        std::memset(sum, 0, sizeof(T) * rows * width);
        std::memset(compensation, 0, sizeof(T) * rows * width);
    }

    // Decays the sum and adds a b, for a (rows, depth), the transposed keys, and b (depth, width).
    void add(const T* a, const T* b, std::int64_t depth, const Decay<T>& decay = {}) const {
        add({a, depth, 1, b, width, depth}, decay);
    }

    // Decays the sum and adds a product.
    void add(const Product<T>& product, const Decay<T>& decay = {}) const {
        const Total<T> total{sum, compensation, width};
        if (decay.is_none()) {
            accumulate<T, false>(product, rows, width, total, decay);
        } else {
            accumulate<T, true>(product, rows, width, total, decay);
        }
    }

    // Decays this sum and adds another one.
    void add(const Matrix& other, const Decay<T>& decay = {}) const {
        for (std::int64_t i = 0; i < rows * width; i += W<T>) {
            kahan_add<T, true>(sum + i, compensation + i, load<T>(other.sum + i), decay);
        }
    }

    // The product of a with this sum; rows of a have `depth` numbers, padded to the rows of this matrix.
    Product<T> times(const T* a, std::int64_t depth) const { return {a, rows, 1, sum, width, depth}; }

    void become_transpose_of(const Matrix& other) const {
        transpose<T>(other.sum, other.rows, other.width, other.width, sum, width);
        transpose<T>(other.compensation, other.rows, other.width, other.width, compensation, width);
    }
};

// S (D, M) and z (D): the state of a head.
template <class T>
struct Sums {
    std::int64_t dim, value_dim;
    Matrix<T> s;
    T *z, *z_compensation;

    Sums(Arena& arena, std::int64_t dim, std::int64_t value_dim)
        : dim(dim),
          value_dim(value_dim),
          s(arena, dim, value_dim),
          z(arena.take<T>(s.rows)),
          z_compensation(arena.take<T>(s.rows)) {}

    void clear() const {
        s.clear();
        std::memset(z, 0, sizeof(T) * s.rows);
        std::memset(z_compensation, 0, sizeof(T) * s.rows);
    }

    // Decays these sums and adds others.
    void add(const Sums& other, const Decay<T>& decay = {}) const {
        s.add(other.s, decay);
        for (std::int64_t d = 0; d < s.rows; d += W<T>) {
            kahan_add<T, true>(z + d, z_compensation + d, load<T>(other.z + d), decay);
        }
    }

    void decay_by(const Decay<T>& decay) const {
        for (std::int64_t i = 0; i < s.rows * s.width; i += W<T>) {
            kahan_add<T, true>(s.sum + i, s.compensation + i, Vec<T>{}, decay);
        }
        for (std::int64_t d = 0; d < s.rows; d += W<T>) {
            kahan_add<T, true>(z + d, z_compensation + d, Vec<T>{}, decay);
        }
    }

    // The dot product with another S and z, which are stored one after the other.
    double product(const T* other) const {
        const std::int64_t numbers = s.rows * s.width;
        return dot_product<T>(s.sum, other, numbers) + dot_product<T>(z, other + numbers, s.rows);
    }

    // Loads the caller's state number `index`, or zeros if there is none.
    void load_from(const State& state, std::int64_t index) const {
        clear();
        if (state.z == nullptr) return;  // not s: with M = 0 its address is null too
        const T* from = static_cast<const T*>(state.s) + index * dim * value_dim;
        for (std::int64_t r = 0; r < dim && value_dim > 0; ++r) {
            std::memcpy(s.sum + r * s.width, from + r * value_dim, sizeof(T) * value_dim);
        }
        std::memcpy(z, static_cast<const T*>(state.z) + index * dim, sizeof(T) * dim);
    }

    void save_to(const State& state, std::int64_t index) const {
        if (state.z == nullptr) return;
        T* to = static_cast<T*>(state.s) + index * dim * value_dim;
        for (std::int64_t r = 0; r < dim && value_dim > 0; ++r) {
            std::memcpy(to + r * value_dim, s.sum + r * s.width, sizeof(T) * value_dim);
        }
        std::memcpy(static_cast<T*>(state.z) + index * dim, z, sizeof(T) * dim);
    }
};

LINATTN_END
