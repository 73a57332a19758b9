#include "emulation/fibers.hpp"

#include <sys/mman.h>

#include <new>

#ifdef LINATTN_ASSEMBLY_SWITCH
// Registers that a call must keep, then the stack pointer, then the same of the other fiber. The floating-point control
// words are the same for all fibers.
asm(R"(
    .text
    .p2align 4
    .globl linattn_emulation_switch
    .hidden linattn_emulation_switch
    .type linattn_emulation_switch, @function
linattn_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size linattn_emulation_switch, .-linattn_emulation_switch
)");
#endif

namespace linattn::emulation {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t stride = Stacks::size + page;

}  // namespace

Stacks::Stacks(int count) : count_(count) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, count * stride, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<unsigned char*>(memory);
    for (int i = 0; i < count; ++i) mprotect(memory_ + i * stride, page, PROT_NONE);
}

Stacks::~Stacks() { munmap(memory_, count_ * stride); }

unsigned char* Stacks::bottom(int index) const { return memory_ + index * stride + page; }

void prepare(Context& context, unsigned char* bottom, int color, void (*entry)()) {
    context.bottom = bottom;
    context.size = Stacks::size;
    context.fake_stack = nullptr;
    if (addresses_watched()) __asan_unpoison_memory_region(bottom, Stacks::size);
    const std::size_t used = Stacks::size - static_cast<std::size_t>(color % 32) * (1024 + 64);
#ifdef LINATTN_ASSEMBLY_SWITCH
    auto* top = reinterpret_cast<void**>(bottom + used);
    *--top = nullptr;  // the address that `entry` would return to; unwinding ends here
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
#else
    getcontext(&context.registers);
    context.registers.uc_stack.ss_sp = bottom;
    context.registers.uc_stack.ss_size = used;
    context.registers.uc_link = nullptr;
    makecontext(&context.registers, entry, 0);
#endif
}

void entered(Context& host) {
    if (!addresses_watched()) return;
    const void* bottom;
    std::size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (host.bottom == nullptr) host.bottom = bottom, host.size = size;
}

}  // namespace linattn::emulation
