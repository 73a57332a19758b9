// The rows of one item: loaded into scratch, mapped and padded, and zero for keys that do not exist, whatever they hold.
// Values, outputs and their gradients are read where they are if they look as they do in scratch.
#pragma once

#include "ahead.hpp"

LINATTN_BEGIN

// The order in which a pass walks along the sequence. `Inputs` also prefetches in this order: while it loads rows, those
// after them or before them. With `swept`, the order is free and `Inputs` prefetches nothing, because sweeps do (see
// Ahead).
enum class Direction { forwards = 1, backwards = -1, swept = 0 };

template <class T>
class Inputs {
public:
    Inputs(const Attention& call, const Item& item, Direction direction = Direction::forwards)
        : direction_(static_cast<int>(direction)),
          call_(call),
          item_(item),
          query_(slice(call.query, item.batch, item.query_head, item.start, call.query_dtype)),
          key_(slice(call.key, item.batch, item.head, item.start, call.query_dtype)),
          value_(slice(call.value, item.batch, item.head, item.start, call.value_dtype)),
          log_decay_(static_cast<const T*>(call.log_decay)),
          mask_(call.mask == nullptr ? nullptr : call.mask + item.batch * call.keys + item.start) {}

    // `size` rows from position `first` on; those that do not exist are zero.
    void queries(std::int64_t first, int size, T* to) const {
        load_rows<T>(query_, first, rows_at(first, item_.queries, size), size, size * direction_, call_.dim, call_.map,
                     to);
    }
    void keys(std::int64_t first, int size, T* to) const {
        load_rows<T>(key_, first, rows_at(first, item_.keys, size), size, size * direction_, call_.dim, call_.map, to);
        if (mask_ != nullptr) erase_absent(first, size, padded<T>(call_.dim), to);
    }
    void values(std::int64_t first, int size, T* to) const {
        load_rows<T>(value_, first, rows_at(first, item_.keys, size), size, size * direction_, call_.value_dim,
                     FeatureMap::identity, to);
        if (mask_ != nullptr) erase_absent(first, size, padded<T>(call_.value_dim), to);
    }
    // Whether there is a key at each of `size` positions from `first` on.
    bool all_exist(std::int64_t first, int size) const { return first + size <= item_.keys && mask_ == nullptr; }

    // Values where they are, if they look as they do in scratch and all exist; else copies in `scratch`.
    ContiguousRows<T> values_in_place(std::int64_t first, int size, T* scratch) const {
        if (all_exist(first, size) && is_like_scratch<T>(value_, call_.value_dim)) return in_place<T>(value_, first);
        values(first, size, scratch);
        return {scratch, padded<T>(call_.value_dim)};
    }
    // The same for rows that must be `step` numbers apart, as in scratch: values are copied if their rows are not.
    const T* values_in_place(std::int64_t first, int size, std::int64_t step, T* scratch) const {
        if (value_.row == step) return values_in_place(first, size, scratch).data;
        values(first, size, scratch);
        return scratch;
    }
    // Adds the rows of positions first .. first + size to those that are prefetched.
    void prefetch(std::int64_t first, int size, Ahead& ahead) const {
        ahead.add(query_, first, rows_at(first, item_.queries, size), call_.dim);
        ahead.add(key_, first, rows_at(first, item_.keys, size), call_.dim);
        ahead.add(value_, first, rows_at(first, item_.keys, size), call_.value_dim);
    }

    // Logarithms of the decay, 0 where there is no key.
    void log_decays(std::int64_t first, int size, T* to) const {
        std::memcpy(to, log_decay_ + key_row(call_, item_) + first, sizeof(T) * rows_at(first, item_.keys, size));
        erase_absent(first, size, 1, to);
    }

    // Among `size` rows from position `first` on, zeroes those whose key does not exist; they may hold NaN.
    void erase_absent(std::int64_t first, int size, std::int64_t width, T* rows) const {
        const int exist = rows_at(first, item_.keys, size);
        std::memset(rows + exist * width, 0, sizeof(T) * (size - exist) * width);
        for (int t = 0; t < exist && mask_ != nullptr; ++t) {
            if (mask_[first + t] == 0) std::memset(rows + t * width, 0, sizeof(T) * width);
        }
    }

protected:
    const int direction_;
    const Attention& call_;
    const Item item_;

private:
    const Rows query_, key_, value_;
    const T* const log_decay_;
    const std::uint8_t* const mask_;
};

// The backward pass reads the upstream gradient, the output and the normalizer too.
template <class T>
class GradientInputs : public Inputs<T> {
public:
    GradientInputs(const AttentionBackward& call, const Item& item, Direction direction = Direction::forwards)
        : Inputs<T>(call, item, direction),
          grad_out_(slice(call.grad_out, item.batch, item.query_head, item.start, call.value_dtype)),
          out_(contiguous_rows(call.out, query_row(call, item), call.value_dim, call.value_dtype)),
          normalizer_(static_cast<const T*>(call.normalizer) + query_row(call, item)),
          grad_normalizer_(call.grad_normalizer == nullptr
                               ? nullptr
                               : static_cast<const T*>(call.grad_normalizer) + query_row(call, item)),
          width_(padded<T>(call.value_dim)) {}

    // g = grad_out / n, or grad_out if the output was not normalized.
    void gradients(std::int64_t first, int size, T* to) const {
        const int count = rows_at(first, this->item_.queries, size);
        T factors[kBlock];
        if (this->call_.normalize && invert(normalizer_ + first, count, factors)) {
            scale_rows<T>(factors, count, width_, in_place_or_copied(grad_out_, first, size, to), to);
            std::memset(to + count * width_, 0, sizeof(T) * (size - count) * width_);
            return;
        }
        copy(grad_out_, first, size, to);
        for (int i = 0; i < count && this->call_.normalize; ++i) {
            T* row = to + i * width_;
            const T factor = reciprocal_for<T>(normalizer_[first + i], row, width_);
            for (std::int64_t m = 0; m < width_; m += W<T>) store<T>(row + m, load<T>(row + m) * factor);
        }
    }

    // The same, and of gradients; of the output too if `with_out`.
    void prefetch(std::int64_t first, int size, bool with_out, Ahead& ahead) const {
        const int count = rows_at(first, this->item_.queries, size);
        Inputs<T>::prefetch(first, size, ahead);
        ahead.add(grad_out_, first, count, this->call_.value_dim);
        if (with_out) ahead.add(out_, first, count, this->call_.value_dim);
    }

    // h = -g . out plus the upstream gradient of the normalizer, for `size` positions (at most kRunRows). `out`
    // (size, M) and `partial` (kChunk, W) are scratch.
    void normalizer_gradients(std::int64_t first, int size, const T* gradients, T* out, T* partial, T* to) const {
        const int count = rows_at(first, this->item_.queries, size);
        if (this->call_.normalize) {
            add_quotients(first, size, count, gradients, out, partial, to);
        } else {
            std::memset(to, 0, sizeof(T) * round_up(size, kChunk));
        }
        for (int i = 0; i < count && grad_normalizer_ != nullptr; ++i) to[i] += grad_normalizer_[first + i];
    }

private:
    void copy(const Rows& rows, std::int64_t first, int size, T* to) const {
        load_rows<T>(rows, first, rows_at(first, this->item_.queries, size), size, size * this->direction_,
                     this->call_.value_dim, FeatureMap::identity, to);
    }
    // Rows that a sweep has prefetched are read where they are, if they look as they do in scratch.
    ContiguousRows<T> in_place_or_copied(const Rows& rows, std::int64_t first, int size, T* scratch) const {
        const bool swept = this->direction_ == static_cast<int>(Direction::swept);
        if (swept && is_like_scratch<T>(rows, this->call_.value_dim)) return in_place<T>(rows, first);
        copy(rows, first, size, scratch);
        return {scratch, width_};
    }

    // -g . out, which comes from the division by the normalizers.
    void add_quotients(std::int64_t first, int size, int count, const T* gradients, T* out, T* partial, T* to) const {
        const ContiguousRows<T> outputs = in_place_or_copied(out_, first, size, out);
        for (int chunk = 0; chunk < size; chunk += kChunk) {
            for (int i = 0; i < kChunk && chunk + i < size; ++i) {
                const std::int64_t row = chunk + i;
                Vec<T> sum{};
                for (std::int64_t m = 0; m < width_ && row < count; m += W<T>) {
                    sum -= load<T>(gradients + row * width_ + m) * load<T>(outputs.data + row * outputs.step + m);
                }
                store<T>(partial + i * W<T>, sum);
            }
            sum_rows<T>(partial, to + chunk);
        }
    }

    const Rows grad_out_, out_;
    const T *normalizer_, *grad_normalizer_;
    const std::int64_t width_;
};

// products = gradients times the derivative of the map at phi, for `count` rows; `products` may be `gradients`.
template <class T, int Map>
LINATTN_LOOP void multiply_slopes(int count, std::int64_t width, const T* gradients, const T* phi, T* products) {
    for (std::int64_t i = 0; i < count * width; i += W<T>) {
        store<T>(products + i, load<T>(gradients + i) * map_derivative<T>(Map, load<T>(phi + i)));
    }
}

// Writes `count` rows of gradients of q or k, with the derivative of the map at phi multiplied in. `gradients` is
// scratch and may be overwritten.
template <class T>
static inline void store_gradients(const OutRows& to, std::int64_t first, int count, T* gradients, const T* phi,
                                   FeatureMap map) {
    if (to.data == nullptr) return;
    if (map == FeatureMap::identity) return write_rows<T>(to, first, gradients, count);
    const std::int64_t width = padded<T>(to.width);
    const bool at_once = takes_results<T>(to);
    T* products = at_once ? static_cast<T*>(to.at(first)) : gradients;
    if (map == FeatureMap::relu) multiply_slopes<T, 1>(count, width, gradients, phi, products);
    if (map == FeatureMap::elu) multiply_slopes<T, 2>(count, width, gradients, phi, products);
    if (!at_once) write_rows<T>(to, first, products, count);
}

LINATTN_END
