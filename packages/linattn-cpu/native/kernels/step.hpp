// One decoding step (equations 18 to 20 of the paper): the state is read and written once.
#pragma once

#include "chunks.hpp"

LINATTN_BEGIN

// With fewer numbers of state than this, a step runs on one thread: waking others would cost more.
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

    // One key/value head of one row, and all query heads that read it.
    void run(std::int64_t batch, std::int64_t head) {
        const std::int64_t slot = call_.state_indices == nullptr ? batch : call_.state_indices[batch];
        const std::int64_t groups = groups_of(call_), query_head = head * groups;
        if (slot < 0) {
            const std::int64_t row = call_.value_dim * bytes_of(call_.value_dtype);
            std::memset(out_row(batch, query_head), 0, row * groups);
            return;
        }
        load_rows<T>(slice(call_.key, batch, head, 0, call_.query_dtype), 0, 1, 1, 0, call_.dim, call_.map, key_);
        load_rows<T>(slice(call_.value, batch, head, 0, call_.value_dtype), 0, 1, 1, 0, call_.value_dim,
                     FeatureMap::identity, value_);
        s_ = static_cast<T*>(call_.s.data) + slot * call_.s.batch + head * call_.s.head;
        z_ = static_cast<T*>(call_.z.data) + slot * call_.z.batch + head * call_.z.head;
        if (call_.log_decay == nullptr) {
            read<true, false>(batch, query_head);
        } else {
            const T* decay = static_cast<const T*>(call_.log_decay);
            decay_ = Decay<T>::by(decay[batch * call_.kv_heads + head]);
            read<true, true>(batch, query_head);
        }
        for (std::int64_t group = 1; group < groups; ++group) read<false, false>(batch, query_head + group);
    }

private:
    // Reads the state for one query head; if `Adds`, first decays the state and adds the key.
    template <bool Adds, bool Decays>
    void read(std::int64_t batch, std::int64_t head) {
        load_rows<T>(slice(call_.query, batch, head, 0, call_.query_dtype), 0, 1, 1, 0, call_.dim, call_.map, query_);
        std::memset(out_, 0, sizeof(T) * value_width_);
        if (call_.s.dim == 1) {
            read_rows<Adds, Decays>();
        } else {
            for (std::int64_t c = 0; c < call_.value_dim; ++c) read_column<Adds, Decays>(c);
        }
        T normalizer = T(0);
        for (std::int64_t d = 0; d < call_.dim; ++d) {
            normalizer += query_[d] * updated<Adds, Decays>(z_ + d * call_.z.dim, key_[d]);
        }
        normalizer += static_cast<T>(call_.eps);
        const T factor = call_.normalize ? reciprocal_for<T>(normalizer, out_, value_width_) : T(1);
        store_row<T>(out_row(batch, head), call_.value_dtype, out_, call_.value_dim, factor);
    }

    template <bool Adds, bool Decays>
    void read_rows() {
        const std::int64_t m = call_.value_dim, whole = m / W<T> * W<T>;
        for (std::int64_t c = 0; c < whole; c += W<T>) {
            const Vec<T> v = load<T>(value_ + c);
            Vec<T> sum{};
            for (std::int64_t d = 0; d < call_.dim; ++d) {
                T* at = s_ + d * call_.s.position + c;
                Vec<T> now = load<T>(at);
                if constexpr (Adds) {
                    Vec<T> more = key_[d] * v;
                    if constexpr (Decays) now *= decay_.scale, more += now * decay_.lost;
                    now += more;
                    store<T>(at, now);
                }
                sum += query_[d] * now;
            }
            store<T>(out_ + c, sum);
        }
        for (std::int64_t c = whole; c < m; ++c) read_column<Adds, Decays>(c);
    }

    template <bool Adds, bool Decays>
    void read_column(std::int64_t c) {
        T* at = s_ + c * call_.s.dim;
        for (std::int64_t d = 0; d < call_.dim; ++d, at += call_.s.position) {
            out_[c] += query_[d] * updated<Adds, Decays>(at, key_[d] * value_[c]);
        }
    }

    // A number of the state, after decay and addition of `x`.
    template <bool Adds, bool Decays>
    T updated(T* at, T x) const {
        if constexpr (Decays) *at *= decay_.scale, x += *at * decay_.lost;
        if constexpr (Adds) *at += x;
        return *at;
    }

    char* out_row(std::int64_t batch, std::int64_t head) const {
        const std::int64_t row = (batch * call_.heads + head) * call_.value_dim;
        return static_cast<char*>(call_.out) + row * bytes_of(call_.value_dtype);
    }

    const Step& call_;
    const std::int64_t width_, value_width_;
    T *const query_, *const key_, *const value_, *const out_;
    T *s_ = nullptr, *z_ = nullptr;
    Decay<T> decay_;
};

template <class T>
static void step_all(const Step& call) {
    const std::int64_t items = call.batch * call.kv_heads;
    const std::int64_t state = items * call.dim * call.value_dim;
    // One head is too little work for a thread, so threads take several at a time.
    const std::int64_t together = (items + 4 * call.threads - 1) / (4 * call.threads);
    const bool alone = call.threads == 1 || state < kSerialState;
    const std::int64_t group = alone || together < 1 ? items : together;
    if (items == 0) return;
    const std::int64_t groups = (items + group - 1) / group;
    share_passes<StepPass<T>>(groups, alone ? 1 : call.threads, call, [&](std::int64_t index, auto& pass) {
        const std::int64_t end = (index + 1) * group < items ? (index + 1) * group : items;
        for (std::int64_t i = index * group; i < end; ++i) pass.run(i / call.kv_heads, i % call.kv_heads);
    });
}

LINATTN_END
