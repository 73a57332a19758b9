#include "instruction_sets.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "compiled_sets.hpp"
#include "machine.hpp"

namespace linattn {

// One namespace for each build of the kernels.
#define LINATTN_DECLARE(set)      \
    namespace set {               \
    extern const Kernels kernels; \
    }
LINATTN_COMPILED_SETS(LINATTN_DECLARE)

namespace {

#define LINATTN_LIST(set) &set::kernels,
const Kernels* const compiled[] = {LINATTN_COMPILED_SETS(LINATTN_LIST)};

}  // namespace

const std::vector<std::string>& machine_sets() {
    static const std::vector<std::string> sets = sets_of_machine();  // asks for tiles once
    return sets;
}

std::vector<const Kernels*> usable_kernels() {
    const std::vector<std::string>& sets = machine_sets();
    std::vector<const Kernels*> usable;
    for (const Kernels* kernels : compiled) {
        const bool can_run = std::find(sets.begin(), sets.end(), kernels->instruction_set) != sets.end();
        if (can_run) usable.push_back(kernels);
    }
    return usable;
}

namespace {

std::atomic<const Kernels*>& live() {
    static std::atomic<const Kernels*> kernels{usable_kernels().front()};
    return kernels;
}

}  // namespace

const Kernels& live_kernels() { return *live().load(std::memory_order_relaxed); }

void use_instruction_set(const std::string& name) {
    std::string known;
    for (const Kernels* kernels : usable_kernels()) {
        if (name == kernels->instruction_set) {
            live().store(kernels, std::memory_order_relaxed);
            return;
        }
        known += known.empty() ? "" : ", ";
        known += kernels->instruction_set;
    }
    throw std::invalid_argument("instruction set: expected one of " + known + ", got '" + name + "'.");
}

}  // namespace linattn
