// Memory: scratch of our own, and big tensors about to be written.
#pragma once

namespace linattn {

// Memory for the threads' scratch, aligned to cache lines; throws std::bad_alloc.
class Scratch {
public:
    explicit Scratch(long long bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* get() const { return memory_; }

private:
    void* memory_;
};

// Tells the system that a tensor is about to be written from end to end. Where it is fresh memory
// the first touch of each small page would cost as much as all arithmetic on it; big pages are
// touched 512 times less often.
void expect_writes(void* tensor, long long bytes);

}  // namespace linattn
