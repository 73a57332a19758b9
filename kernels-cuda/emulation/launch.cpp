#include "emulation/launch.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulation/block.hpp"

namespace linattn::emulation {

__thread const Running* running = nullptr;
__thread Block* current_block = nullptr;

namespace {

std::atomic<int> shared_limit{227 << 10};
std::atomic<int> order{0};

// Blocks that no launch uses now, kept for their stacks.
std::mutex idle_mutex;
std::vector<std::unique_ptr<Block>> idle;

std::unique_ptr<Block> take(int threads) {
    const std::lock_guard<std::mutex> lock(idle_mutex);
    for (auto& block : idle) {
        if (block->threads() != threads) continue;
        std::unique_ptr<Block> taken = std::move(block);
        block = std::move(idle.back());
        idle.pop_back();
        return taken;
    }
    return std::make_unique<Block>(threads);
}

// Holds a block for the duration of a launch.
class Lease {
public:
    explicit Lease(const Launch& launch) : block_(take(launch.threads)) { block_->open(launch); }
    ~Lease() {
        block_->close();
        const std::lock_guard<std::mutex> lock(idle_mutex);
        idle.push_back(std::move(block_));
    }
    Lease(const Lease&) = delete;
    Block& operator*() const { return *block_; }

private:
    std::unique_ptr<Block> block_;
};

// Runs the grid's blocks one after another; returns the error, or an empty string. ThreadSanitizer takes blocks that
// run in one `Block` to be ordered. For it there are three `Block`s in pseudo-random turns, so that it sees most races.
std::string run_grid(const Launch& launch, int order) {
    std::deque<Lease> blocks;
    for (int i = 0; i < (threads_watched() ? 3 : 1); ++i) blocks.emplace_back(launch);
    const Int count = launch.grid_x * launch.grid_y;
    for (Int i = 0; i < count; ++i) {
        const Int block = order == 0 ? i : count - 1 - i;
        const auto turn = static_cast<unsigned>(block) * 2654435761u >> 16;
        const char* error =
            (*blocks[turn % blocks.size()]).run(block % launch.grid_x, static_cast<int>(block / launch.grid_x), order);
        if (error != nullptr) return error;
    }
    return "";
}

// The CUDA error that a GPU would return for a launch; 0: none.
int refusal(const Launch& launch) {
    constexpr int invalid_value = 1, invalid_configuration = 9;
    if (launch.shared < 0 || launch.shared > shared_limit) return invalid_value;
    const bool grid = launch.grid_x >= 1 && launch.grid_x <= 0x7fffffff && launch.grid_y >= 1 && launch.grid_y <= 65535;
    const bool threads = launch.threads >= 32 && launch.threads <= 1024 && launch.threads % 32 == 0;
    return grid && threads ? 0 : invalid_configuration;
}

}  // namespace

void set_shared_limit(int bytes) { shared_limit = bytes; }
int get_shared_limit() { return shared_limit; }
void set_order(int seed) { order = seed; }

int resident(const Launch& launch) {
    constexpr int registers = 65536, of_a_thread = 128;
    return std::min(registers / (of_a_thread * launch.threads), shared_limit / std::max(launch.shared, 1));
}

Status run(const Launch& launch) {
    const int error = refusal(launch);
    if (error != 0) return {error, launch.name};
    const std::string failure = run_grid(launch, order);
    if (!failure.empty()) throw std::runtime_error(failure);
    return {0, nullptr};
}

}  // namespace linattn::emulation
