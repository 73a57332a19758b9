// Conversions, every value of them that there is where that is possible.
#include <cmath>
#include <limits>

#include "testing.hpp"

namespace linattn::testing {
namespace {

const float infinity = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

// By the definition of the format.
double half_value(int bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return fraction ? nan : sign * infinity;
    return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

LINATTN_TEST(every_half_becomes_its_float_and_comes_back) {
    for (int bits = 0; bits < 65536; ++bits) {
        const auto half = static_cast<u16>(bits);
        const double value = half_value(bits);
        const float got = half_to_float(half);
        if (std::isnan(value)) {
            expect(std::isnan(got) && std::isnan(half_to_float(float_to_half(got))), "NaN was expected to stay NaN");
            continue;
        }
        expect(got == value && std::signbit(got) == std::signbit(value), "half " + std::to_string(bits));
        expect_equal<int>(float_to_half(got), bits, "the half of its float");
    }
}

LINATTN_TEST(floats_between_two_halves_go_to_the_nearer_one_and_ties_to_the_even_one) {
    for (int bits = 0; bits < 0x7bff; ++bits) {
        const float low = half_to_float(static_cast<u16>(bits)), high = half_to_float(static_cast<u16>(bits + 1));
        const float middle = (low + high) / 2;
        expect_equal<int>(float_to_half(middle), bits + bits % 2, "a tie");
        expect_equal<int>(float_to_half(std::nextafter(middle, 0.0f)), bits, "below a tie");
        expect_equal<int>(float_to_half(-std::nextafter(middle, infinity)), 0x8000 + bits + 1, "above a tie, negative");
    }
    expect_equal<int>(float_to_half(std::nextafter(65520.0f, 0.0f)), 0x7bff, "the largest that is finite");
    expect_equal<int>(float_to_half(65520.0f), 0x7c00, "the smallest that is not");
    expect_equal<int>(float_to_half(-infinity), 0xfc00, "minus infinity");
    expect_equal<int>(float_to_half(1e-40f), 0, "a float too small for half");
}

LINATTN_TEST(floats_are_rounded_to_bfloat16) {
    const auto low = [](float x) { return static_cast<int>(pack_bf16(x, 2.0f) & 0xffffu); };
    expect_equal<u32>(pack_bf16(1.0f, -2.0f), 0xc0003f80u, "two numbers");
    for (u32 bits = 0; bits < 0x7f7f; ++bits) {
        const float below = bits_to_float(bits << 16), tie = bits_to_float((bits << 16) | 0x8000u);
        expect_equal<int>(low(below), bits, "a number that is exact");
        expect_equal<int>(low(tie), bits + bits % 2, "a tie");
        expect_equal<int>(low(bits_to_float((bits << 16) | 0x7fffu)), bits, "below a tie");
        expect_equal<int>(low(bits_to_float((bits << 16) | 0x8001u)), bits + 1, "above a tie");
    }
    expect_equal<int>(low(3.4e38f), 0x7f80, "a number that rounds to infinity");
    expect_equal<int>(low(-infinity), 0xff80, "minus infinity");
    for (u32 bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
        const float back = bits_to_float(pack_bf16(1.0f, bits_to_float(bits)) & 0xffff0000u);
        expect(std::isnan(back), "NaN was expected to stay NaN");
    }
}

}  // namespace
}  // namespace linattn::testing
