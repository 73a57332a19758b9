// One running block: its fibers, where each of them waits, and which one runs next.
#pragma once

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emulation/fibers.hpp"
#include "emulation/launch.hpp"
#include "emulation/runtime.hpp"

namespace linattn::emulation {

enum class Wait { nothing, warp_barrier, shuffle, shuffle_xor, matrices, matrices_transposed, multiply, barrier, end };

struct Warp;

// A CUDA thread.
struct Fiber : Running {
    Context context;
    Warp* warp;
    int position;  // in its warp, in the order of running
    int lane;
    Wait wait;
    Place place;
    static constexpr int most_copies = 1024;  // under way at once
    std::unique_ptr<Copy[]> copies;           // a ring
    unsigned first_copy, copy_end;
    int groups;  // committed
};

// 32 fibers and what they deposit at a collective: an entry a lane. A lane takes its result before it deposits again,
// and the results are computed only after all have deposited, so that one set of entries is enough.
struct Warp {
    u32 ready;  // which positions may be switched to
    int arrived;
    int phase;
    long long tags[2];  // for ThreadSanitizer: one for each phase of the barrier
    int index;          // among the block's warps in the order of running
    Wait wait;
    Place place;
    alignas(64) u32 a[4][32];
    u32 b[2][32];
    float c[4][32];
    Row rows[32];
    Matrices matrices[32];
    u32 values[32];
    int sources[32];
};

struct FreeMemory {
    void operator()(unsigned char* memory) const { std::free(memory); }
};

class Block {
public:
    explicit Block(int threads);

    // Between `open` and `close`, runs blocks of the launch. `run` returns what went wrong, or null.
    void open(const Launch& launch);
    const char* run(Int x, int y, int order);
    void close();

    // For the fiber that is running.
    void begin();
    void suspend(Fiber& self);
    void arrive(Fiber& self, Place place);
    [[noreturn]] void leave(Fiber& self);
    [[noreturn]] void give_up(Place place, const char* format, va_list values);
    // Gives up because not all reached what `place` is; `other` is one that did not.
    [[noreturn]] void give_up(Wait wait, Place place, const Fiber& other);

    int threads() const { return threads_; }
    const Launch& launch() const { return *launch_; }

private:
    void start_fibers(Int x, int y, int order);
    void release_fibers();
    Fiber& next(const Fiber& self);
    [[noreturn]] void report_stuck();

    int threads_;
    std::vector<Fiber> fibers_;
    std::vector<Warp> warps_;
    Stacks stacks_;
    std::unique_ptr<unsigned char, FreeMemory> shared_;  // of the exact size: AddressSanitizer sees the end
    const Launch* launch_ = nullptr;
    Context host_;
    Place place_{};  // of the barrier at which threads wait
    int arrived_ = 0, finished_ = 0, phase_ = 0;
    long long tags_[2] = {}, start_tag_ = 0, end_tag_ = 0;
    char error_[1024];
};

// The block whose fiber is running on this thread, and the fiber.
extern __thread Block* current_block LINATTN_FAST_TLS;
inline bool elsewhere(Place a, Place b) {
    return a.line != b.line || (a.file != b.file && std::strcmp(a.file, b.file) != 0);
}
inline Fiber& current_fiber() { return *static_cast<Fiber*>(const_cast<Running*>(running)); }

}  // namespace linattn::emulation
