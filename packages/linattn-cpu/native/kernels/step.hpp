// One decoding step (equations 18 to 20 of the paper): the state is read and written once.
#pragma once

#include "chunks.hpp"

LINATTN_BEGIN

// Fewer numbers of state than this are not worth waking other threads for.
inline constexpr std::int64_t kSerialState = 16384;

template <class T>
class StepPass {
public:
    StepPass(Arena& arena, const Step& call)
        : call_(call),
          width_(padded<T>(call.dim)),
          value_width_(padded<T>(call.value_dim)),
          query_(arena.take<T>(width_)),
          key_(arena.take<T>(width_)),
          value_(arena.take<T>(value_width_)),
          out_(arena.take<T>(value_width_)) {}

    void run(std::int64_t batch, std::int64_t head) {
        load_rows<T>(slice(call_.query, batch, head, 0, call_.query_dtype), 0, 1, 1, 0, call_.dim, call_.map, query_);
        load_rows<T>(slice(call_.key, batch, head, 0, call_.query_dtype), 0, 1, 1, 0, call_.dim, call_.map, key_);
        load_rows<T>(slice(call_.value, batch, head, 0, call_.value_dtype), 0, 1, 1, 0, call_.value_dim,
                     FeatureMap::identity, value_);
        std::memset(out_, 0, sizeof(T) * value_width_);
        T* s = static_cast<T*>(call_.s.data) + batch * call_.s.batch + head * call_.s.head;
        if (call_.s.dim == 1) {
            update_rows(s);
        } else {
            update_strided(s);
        }
        write(batch, head);
    }

private:
    void update_rows(T* s) {
        const std::int64_t m = call_.value_dim, whole = m / W<T> * W<T>;
        for (std::int64_t c = 0; c < whole; c += W<T>) {
            const Vec<T> v = load<T>(value_ + c);
            Vec<T> sum{};
            for (std::int64_t d = 0; d < call_.dim; ++d) {
                T* at = s + d * call_.s.position + c;
                const Vec<T> updated = load<T>(at) + key_[d] * v;
                store<T>(at, updated);
                sum += query_[d] * updated;
            }
            store<T>(out_ + c, sum);
        }
        for (std::int64_t c = whole; c < m; ++c) update_column(s + c, c);
    }

    void update_strided(T* s) {
        for (std::int64_t c = 0; c < call_.value_dim; ++c) update_column(s + c * call_.s.dim, c);
    }

    void update_column(T* s, std::int64_t c) {
        for (std::int64_t d = 0; d < call_.dim; ++d) {
            T* at = s + d * call_.s.position;
            *at += key_[d] * value_[c];
            out_[c] += query_[d] * *at;
        }
    }

    void write(std::int64_t batch, std::int64_t head) {
        T* z = static_cast<T*>(call_.z.data) + batch * call_.z.batch + head * call_.z.head;
        T normalizer = T(0);
        for (std::int64_t d = 0; d < call_.dim; ++d) {
            T* at = z + d * call_.z.dim;
            *at += key_[d];
            normalizer += query_[d] * *at;
        }
        normalizer += static_cast<T>(call_.eps);
        const T factor = reciprocal_for<T>(normalizer, out_, value_width_);
        char* to = static_cast<char*>(call_.out) +
                   (batch * call_.heads + head) * call_.value_dim * bytes_of(call_.value_dtype);
        store_row<T>(to, call_.value_dtype, out_, call_.value_dim, factor);
    }

    const Step& call_;
    const std::int64_t width_, value_width_;
    T *const query_, *const key_, *const value_, *const out_;
};

template <class T>
static void step_all(const Step& call) {
    const std::int64_t items = call.batch * call.heads;
    const std::int64_t state = items * call.dim * call.value_dim;
    // A head is too little to be drawn on its own, so threads draw several.
    const std::int64_t together = (items + 4 * call.threads - 1) / (4 * call.threads);
    const bool alone = call.threads == 1 || state < kSerialState;
    const std::int64_t group = alone || together < 1 ? items : together;
    if (items == 0) return;
    const std::int64_t groups = (items + group - 1) / group;
    share_passes<StepPass<T>>(groups, alone ? 1 : call.threads, call, [&](std::int64_t index, auto& pass) {
        const std::int64_t end = (index + 1) * group < items ? (index + 1) * group : items;
        for (std::int64_t i = index * group; i < end; ++i) pass.run(i / call.heads, i % call.heads);
    });
}

LINATTN_END
