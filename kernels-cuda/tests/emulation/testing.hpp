// What every test of the emulation uses: a list of tests, and what they expect.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "linattn/device/platform.cuh"
#include "linattn/host/launch.h"

namespace linattn::testing {

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Register {
    Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define LINATTN_TEST(name)                                                  \
    static void name();                                                     \
    static const ::linattn::testing::Register register_##name(#name, name); \
    static void name()

inline void expect(bool holds, const std::string& what) {
    if (!holds) throw std::logic_error(what);
}

template <class Number>
void expect_equal(Number got, Number expected, const std::string& what) {
    if (got == expected) return;
    throw std::logic_error(what + " was expected to be " + std::to_string(expected) + " and is " + std::to_string(got));
}

// Launches the kernel on one block and expects no error.
template <class Kernel, class... Arguments>
void run(Kernel kernel, int threads, int shared, Arguments... arguments) {
    const Status status = LINATTN_LAUNCH("kernel", kernel, 1, 1, threads, shared, {}, arguments...);
    expect_equal(status.error, 0, "the launch's error");
}

// Launches the kernel and expects a sentence that contains the words.
template <class Kernel, class... Arguments>
void expect_failure(const std::string& words, Kernel kernel, int threads, int shared, Arguments... arguments) {
    try {
        LINATTN_LAUNCH("kernel", kernel, 1, 1, threads, shared, {}, arguments...);
    } catch (const std::runtime_error& error) {
        const std::string sentence = error.what();
        expect(sentence.find(words) != std::string::npos, "\"" + words + "\" was expected in \"" + sentence + "\"");
        expect(sentence.rfind("Kernel kernel, block (0, 0), ", 0) == 0, "the kernel was expected to be named");
        return;
    }
    throw std::logic_error("a failure was expected: " + words);
}

}  // namespace linattn::testing
