// What decoding needs on a machine with one thread and one instruction set, such as a browser: in place of cores.cpp,
// team.cpp and the kernels of attention.
#include <cstdlib>
#include <exception>
#include <new>

#include "calls.hpp"
#include "cores.hpp"
#include "kernels/decoder/packing.hpp"
#include "kernels/units.hpp"
#include "library/tensor_file.hpp"
#include "team.hpp"

namespace linattn {

struct Phases {};

int available_cores() { return 1; }

int team_size(int) { return 1; }

int next_part(Member& member) {
    if (member.part < 0) return member.part = 0;
    ++member.phase;
    return member.part = -1;
}

void run_phases(int, void (*work)(void*, Member&), void* context) {
    Member member{0, 1, nullptr, 0, -1};
    work(context, member);
}

void run_team(int, void (*work)(void*, const Worker&), void* context) {
    long long next = 0;
    work(context, {0, &next});
}

}  // namespace linattn

#ifdef __wasm__
// Its C++ library has no exceptions: throwing ends the call, and `linattn_error` has the sentence. All that is thrown
// begins with a std::exception.
extern "C" void* __cxa_allocate_exception(std::size_t size) noexcept { return std::malloc(size); }
extern "C" [[noreturn]] void __cxa_throw(void* thrown, void*, void (*)(void*)) {
    linattn::keep(*static_cast<const std::exception*>(thrown));
    __builtin_trap();
}
static void end_without_memory() {
    std::set_new_handler(nullptr);  // so that the sentence, which needs some, does not come here again
    linattn::keep(std::bad_alloc());
    std::set_new_handler(end_without_memory);
    __builtin_trap();
}
static const std::new_handler before = std::set_new_handler(end_without_memory);
extern "C" int __cxa_thread_atexit(void (*)(void*), void*, void*) noexcept { return 0; }  // the one thread never ends
#endif

LINATTN_BEGIN

extern const Kernels kernels;
const Kernels kernels = {
    "baseline",
    nullptr,
    nullptr,
    nullptr,
    decoding::kPanel,
    decoding::packed_bytes,
    decoding::packed_sums,
    decoding::pack_matrix,
    decoding::workspace_bytes,
    decoding::decode,
    decoding::draw,
    nullptr,
};

LINATTN_END
