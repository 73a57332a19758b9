#include "cached_memory.hpp"

#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>

#include "memory.hpp"

namespace linattn {

namespace {

// Large blocks begin and end at huge pages, others at multiples of this. Sizes that hardly differ share blocks.
constexpr std::int64_t huge_page = 2 << 20, grain = 64 << 10;

struct Block {
    void* memory;
    std::int64_t size;
};

class Cache {
public:
    // The smallest block that is large enough, unless it is more than twice as large; otherwise {nullptr, size}.
    Block take(std::int64_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto best = blocks_.end();
        for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
            const bool fits = block->size >= size && block->size <= 2 * size;
            if (fits && (best == blocks_.end() || block->size < best->size)) best = block;
        }
        if (best == blocks_.end()) return {nullptr, size};
        const Block taken = *best;
        blocks_.erase(best);
        kept_ -= taken.size;
        return taken;
    }

    void keep(Block block) {
        if (block.size > CachedMemory::kMostKept) return std::free(block.memory);
        const std::lock_guard<std::mutex> lock(mutex_);
        blocks_.push_back(block);
        kept_ += block.size;
        free_until(CachedMemory::kMostKept);
    }

    void empty() {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_until(0);
    }

    std::int64_t kept() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return kept_;
    }

private:
    void free_until(std::int64_t most) {
        for (; kept_ > most; blocks_.pop_front()) {
            kept_ -= blocks_.front().size;
            std::free(blocks_.front().memory);
        }
    }

    std::mutex mutex_;
    std::deque<Block> blocks_;  // the oldest first
    std::int64_t kept_ = 0;
};

// Never destroyed: tensors may be freed while the process ends.
Cache& cache() {
    static Cache& all = *new Cache;
    return all;
}

}  // namespace

CachedMemory::CachedMemory(std::int64_t bytes) : bytes_(bytes) {
    const std::int64_t unit = bytes < huge_page ? grain : huge_page;
    Block block = cache().take(round_up(bytes > 0 ? bytes : 1, unit));
    if (block.memory == nullptr) block.memory = std::aligned_alloc(unit, static_cast<std::size_t>(block.size));
    if (block.memory == nullptr) throw std::bad_alloc();
    size_ = block.size, memory_ = block.memory;
}

CachedMemory::~CachedMemory() { cache().keep({memory_, size_}); }

std::int64_t CachedMemory::kept() { return cache().kept(); }

void CachedMemory::empty() { cache().empty(); }

}  // namespace linattn
