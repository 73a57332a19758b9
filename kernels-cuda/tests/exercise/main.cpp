// Runs every pass of the operator on random calls, in memory of exactly the size of each tensor, for the sanitizers.
// Compares the forward pass with the definition in double precision, and passes over whole sequences with those over
// segments.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "exercise/calls.hpp"
#include "exercise/definition.hpp"

namespace linattn::exercise {
namespace {

bool is_close(const char* what, const Numbers& x, const Numbers& expected, double tolerance) {
    double size = 1, difference = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        size = std::fmax(size, std::fabs(expected[i]));
        const double apart = std::fabs(x[i] - expected[i]);
        difference = apart <= difference ? difference : apart;  // NaN is the largest
    }
    if (difference <= tolerance * size) return true;
    std::printf("%s is off by %g of %g\n", what, difference, size);
    return false;
}

bool agrees(const Shape& shape) {
    const Inputs inputs(shape);
    const double tolerance = shape.dtype == Dtype::float32 ? 1e-5 : 3e-2;
    const Results first = run(inputs, 1);
    bool good = is_close("out", first.out(), definition(inputs), tolerance);
    const Results cut = run(inputs, 3);
    for (int i = 0; i < Results::count; ++i) {
        good = is_close(Results::names[i], cut.numbers[i], first.numbers[i], tolerance) && good;
    }
    return step_agrees(inputs, tolerance) && good;
}

int exercise(int rounds) {
    int wrong = 0;
    for (int seed = 0; seed < rounds; ++seed) {
        const Shape shape = Shape::drawn(seed);
        if (agrees(shape)) continue;
        ++wrong;
        shape.print();
    }
    std::printf("%d calls of all passes whole and in segments, %d wrong\n", rounds, wrong);
    return wrong > 0;
}

}  // namespace
}  // namespace linattn::exercise

int main(int count, char** arguments) { return linattn::exercise::exercise(count > 1 ? std::atoi(arguments[1]) : 24); }
