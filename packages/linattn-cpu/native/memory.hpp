// Memory: scratch blocks, and advice about large tensors that will be written.
#pragma once

#include <cstdint>

namespace linattn {

// A block of memory, aligned to cache lines; throws std::bad_alloc.
class Scratch {
public:
    explicit Scratch(std::int64_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* get() const { return memory_; }

private:
    void* memory_;
};

static constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Hands out pieces of a block of memory, each aligned to a cache line; without a block (null) it only counts the
// bytes that the block needs.
//
// Always inlined: the kernels are compiled once for each instruction set, and a linker must not take
// a function from one of those builds for another.
class Arena {
public:
    __attribute__((always_inline)) explicit Arena(void* block) : start_(static_cast<char*>(block)) {}

    template <class T>
    __attribute__((always_inline)) T* take(std::int64_t count) {
        char* piece = start_ == nullptr ? nullptr : start_ + bytes_;
        bytes_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
        return reinterpret_cast<T*>(piece);
    }
    __attribute__((always_inline)) std::int64_t bytes() const { return bytes_; }
    __attribute__((always_inline)) bool counts() const { return start_ == nullptr; }

private:
    char* start_;
    std::int64_t bytes_ = 0;
};

// The bytes of a core's first-level data cache; 32 KiB if the system does not say.
std::int64_t first_level_cache();

// Prepares a tensor (or null) that will be written completely. In new memory the first touch of each small page would
// cost as much as all arithmetic on it, so the system is advised to use huge pages: 512 times fewer first touches. Large
// memory is touched here, on `threads` threads: in the midst of a kernel, first touches take longer.
void expect_writes(void* tensor, std::int64_t bytes, int threads);

}  // namespace linattn
