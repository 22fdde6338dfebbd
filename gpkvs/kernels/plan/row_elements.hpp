// The elements of rows (gpkvs/columns/row_layout.py), and how they are added to each other.
#pragma once
#include <cfenv>

#include "base/platform.cuh"

#define ROW_ELEMENTS(F)                                                                     \
    F(float32) F(float64) F(float16) F(bfloat16) F(int8) F(int16) F(int32) F(int64) F(uint8) F(uint16) F(uint32) F(uint64)

#define ROW_ELEMENT(name) ROW_##name,
enum RowElement { ROW_NONE, ROW_ELEMENTS(ROW_ELEMENT) };

// While it is there, sums are rounded to nearest, and small numbers stay what they are. A batch may run in a caller's thread, which
// may have set something else: PyTorch has such a switch.
class UsualFloats {
  public:
    UsualFloats() {
        fegetenv(&before_);
        fesetenv(FE_DFL_ENV);
    }
    ~UsualFloats() { fesetenv(&before_); }
    UsualFloats(const UsualFloats&) = delete;
    UsualFloats& operator=(const UsualFloats&) = delete;

  private:
    fenv_t before_;
};

static float float_of_bits(u32 bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static u32 bits_of_float(float number) {
    u32 bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static bool is_nan_bits(u32 bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// Sums of two are exact in a float, or are rounded once there and once to fewer than half of its bits: that is the sum rounded
// once.
struct Float16 {
    u16 bits;

    static float value(Float16 half) {
        const u32 sign = (half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
        if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | rest << 13);  // infinite, or no number
        // With the exponent of a float; the product makes normal numbers of those that are not.
        const float scaled = float_of_bits(rest << 13) * float_of_bits(0x77800000);
        return float_of_bits(sign | bits_of_float(scaled));
    }

    static Float16 of(float number) {
        const u32 given = bits_of_float(number), sign = given >> 16 & 0x8000, rest = given & 0x7fffffff;
        if (is_nan_bits(given)) return {(u16)(sign | 0x7e00 | (rest >> 13 & 0x3ff))};
        if (rest >= 0x477ff000) return {(u16)(sign | 0x7c00)};  // from 65,520 on
        // Smaller than the smallest normal one: the addition rounds where its last bit is.
        if (rest < 0x38800000) return {(u16)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000))};
        return {(u16)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
    }

    Float16 operator+(Float16 other) const { return of(value(*this) + value(other)); }
};

struct Bfloat16 {
    u16 bits;

    static float value(Bfloat16 number) { return float_of_bits((u32)number.bits << 16); }

    static Bfloat16 of(float number) {
        const u32 given = bits_of_float(number);
        if (is_nan_bits(given)) return {(u16)(given >> 16 | 0x40)};
        return {(u16)((given + 0x7fff + (given >> 16 & 1)) >> 16)};
    }

    Bfloat16 operator+(Bfloat16 other) const { return of(value(*this) + value(other)); }
};

// Rows lie anywhere.
template <class Element>
static void add_elements(u8* __restrict to, const u8* __restrict added, u64 bytes) {
    for (u64 at = 0; at + sizeof(Element) <= bytes; at += sizeof(Element)) {
        Element sum, more;
        memcpy(&sum, to + at, sizeof sum);
        memcpy(&more, added + at, sizeof more);
        sum = (Element)(sum + more);
        memcpy(to + at, &sum, sizeof sum);
    }
}

// Adds a row to another one, element by element; whole numbers go on from their other end.
static void add_row(u64 element, u8* to, const u8* added, u64 bytes) {
    switch (element) {
        case ROW_float32: return add_elements<float>(to, added, bytes);
        case ROW_float64: return add_elements<double>(to, added, bytes);
        case ROW_float16: return add_elements<Float16>(to, added, bytes);
        case ROW_bfloat16: return add_elements<Bfloat16>(to, added, bytes);
        case ROW_int8:
        case ROW_uint8: return add_elements<u8>(to, added, bytes);
        case ROW_int16:
        case ROW_uint16: return add_elements<u16>(to, added, bytes);
        case ROW_int32:
        case ROW_uint32: return add_elements<u32>(to, added, bytes);
        case ROW_int64:
        case ROW_uint64: return add_elements<u64>(to, added, bytes);
    }
}
