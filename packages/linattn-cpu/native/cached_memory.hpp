// Memory of large results. What a freed result leaves is kept for later ones, because the system clears new pages, which
// can take a third of a large call.
#pragma once

#include <cstdint>

namespace linattn {

// A block for one result; throws std::bad_alloc. Its destructor leaves the memory to later blocks.
class CachedMemory {
public:
    explicit CachedMemory(std::int64_t bytes);
    ~CachedMemory();
    CachedMemory(const CachedMemory&) = delete;
    CachedMemory& operator=(const CachedMemory&) = delete;
    void* get() const { return memory_; }
    std::int64_t bytes() const { return bytes_; }

    // The most that is kept; what exceeds it goes back to the system, the oldest first.
    static constexpr std::int64_t kMostKept = 256 << 20;

    // The bytes that are kept.
    static std::int64_t kept();
    // Gives all that is kept back to the system.
    static void empty();

private:
    const std::int64_t bytes_;
    std::int64_t size_;  // of the block, at least bytes_
    void* memory_;
};

}  // namespace linattn
