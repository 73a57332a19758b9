// How threads share a call: by heads of sequences, and if there are too few heads, also by parts of sequences.
#pragma once

#include "calls.hpp"
#include "memory.hpp"
#include "rows.hpp"
#include "team.hpp"

LINATTN_BEGIN

// The positions of a causal chunk. Scores of all queries and keys within it cost kChunk (D + M) operations per
// position, in addition to 2 D M for reading the state and 2 D M for adding to it.
inline constexpr int kChunk = 16;
// The positions that are computed at once where they are independent of each other.
inline constexpr int kBlock = 64;
// A part of a sequence with fewer rows than this is not worth a thread of its own.
inline constexpr std::int64_t kSmallestPart = 256;

// One key/value head of one sequence, or the first positions of it, with one of the query heads that read it.
struct Item {
    std::int64_t head, query_head, batch;
    std::int64_t start;          // the first position of a packed sequence, else 0
    std::int64_t queries, keys;  // the number of queries, and of keys up to the last that exists
    std::int64_t state;          // its index among all (sequence, head)

    // The item cut before `position`.
    Item up_to(std::int64_t position) const {
        Item item = *this;
        item.queries = queries < position ? queries : position;
        item.keys = keys < position ? keys : position;
        return item;
    }

    // The item with number `group` of the query heads that read it.
    Item read_by(std::int64_t group) const {
        Item item = *this;
        item.query_head += group;
        return item;
    }
};

// `keys` without the keys at the end that a mask excludes.
LINATTN_INLINE std::int64_t last_key(const Attention& call, std::int64_t batch, std::int64_t start, std::int64_t keys) {
    const std::uint8_t* mask = call.mask == nullptr ? nullptr : call.mask + batch * call.keys + start;
    while (mask != nullptr && keys > 0 && mask[keys - 1] == 0) --keys;
    return keys;
}

LINATTN_INLINE Item item_of(const Attention& call, std::int64_t index) {
    const std::int64_t sequence = index / call.kv_heads, head = index % call.kv_heads;
    const std::int64_t query_head = head * groups_of(call);
    if (call.cu_seqlens != nullptr) {
        const std::int64_t start = call.cu_seqlens[sequence];
        const std::int64_t length = call.cu_seqlens[sequence + 1] - start;
        return {head, query_head, 0, start, length, last_key(call, 0, start, length), index};
    }
    const std::int64_t keys = call.key_lengths == nullptr ? call.keys : call.key_lengths[sequence];
    return {head, query_head, sequence, 0, call.queries, last_key(call, sequence, 0, keys), index};
}

// The index of the item's first row in a contiguous tensor (B, H, N), and in one (B, H_kv, L).
LINATTN_INLINE std::int64_t query_row(const Attention& call, const Item& item) {
    return (item.batch * call.heads + item.query_head) * call.queries + item.start;
}
LINATTN_INLINE std::int64_t key_row(const Attention& call, const Item& item) {
    return (item.batch * call.kv_heads + item.head) * call.keys + item.start;
}

// The numbers low .. high - 1, such as positions of a length.
struct Range {
    std::int64_t low, high;
};

// Part number `part` of `parts` nearly equal parts of a length; each starts at a multiple of kBlock.
LINATTN_INLINE Range part_of(std::int64_t length, std::int64_t part, std::int64_t parts) {
    const std::int64_t blocks = (length + kBlock - 1) / kBlock;
    const std::int64_t low = blocks * part / parts * kBlock, high = blocks * (part + 1) / parts * kBlock;
    return {low < length ? low : length, high < length ? high : length};
}

// The length of the longest sequence.
static inline std::int64_t longest_sequence(const Attention& call) {
    std::int64_t longest = call.cu_seqlens == nullptr ? call.queries : 0;
    for (std::int64_t i = 0; i < call.sequences && call.cu_seqlens != nullptr; ++i) {
        const std::int64_t length = call.cu_seqlens[i + 1] - call.cu_seqlens[i];
        longest = length > longest ? length : longest;
    }
    return longest;
}

LINATTN_INLINE std::int64_t items_of(const Attention& call) { return call.sequences * call.kv_heads; }

// The number of parts into which each sequence is cut, so that all threads have work. Each position has `rows` rows of
// work: 1 for keys, the number of query heads that read them for queries.
LINATTN_INLINE std::int64_t parts_for(const Attention& call, std::int64_t positions, std::int64_t rows) {
    const std::int64_t by_rows = positions * rows / kSmallestPart, by_blocks = positions / kBlock;
    const std::int64_t most = by_rows < by_blocks ? by_rows : by_blocks;
    const std::int64_t wanted = items_of(call) == 0 ? 1 : call.threads / items_of(call);
    const std::int64_t parts = wanted < most ? wanted : most;
    return parts > 1 ? parts : 1;
}

// Calls work(index, scratch) for every index below `count` on up to `threads` threads, each with its own `bytes` of
// scratch. A free thread takes the next index; results do not depend on which thread takes which.
template <class Work>
static inline void share(std::int64_t count, int threads, std::int64_t bytes, const Work& work) {
    if (count == 0) return;
    if (threads > count) threads = static_cast<int>(count);
    bytes = round_up(bytes, 64);
    // Allocated before the threads start, because an exception cannot leave a thread.
    const Scratch scratch(bytes * threads);
    struct Context {
        std::int64_t count, bytes;
        char* scratch;
        const Work& work;
    } context{count, bytes, static_cast<char*>(scratch.get()), work};
    run_team(
        threads,
        [](void* shared, const Worker& worker) {
            const Context& at = *static_cast<Context*>(shared);
            for (;;) {
                const std::int64_t index = __atomic_fetch_add(worker.next, 1, __ATOMIC_RELAXED);
                if (index >= at.count) return;
                at.work(index, at.scratch + at.bytes * worker.rank);
            }
        },
        &context);
}

// Calls work(index, pass) for every index below `count`, with a Pass in the scratch of the thread that runs it.
template <class Pass, class Call, class Work>
static inline void share_passes(std::int64_t count, int threads, const Call& call, const Work& work) {
    Arena size(nullptr);
    const Pass counted(size, call);
    share(count, threads, size.bytes(), [&](std::int64_t index, char* scratch) {
        Arena arena(scratch);
        Pass pass(arena, call);
        work(index, pass);
    });
}

// The same for every part of every item: work(item, part, pass).
template <class Pass, class Call, class Work>
static inline void share_parts(const Call& call, std::int64_t parts, const Work& work) {
    share_passes<Pass>(items_of(call) * parts, call.threads, call, [&](std::int64_t index, Pass& pass) {
        work(item_of(call, index / parts), index % parts, pass);
    });
}

LINATTN_END
