// Numbers with a point, as Redis reads and writes them, but for few (docs/redis.md): of the 80 bits of x87 where the processor
// has them.
#pragma once
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <locale.h>
#include <strings.h>

#include "base/platform.cuh"

// Texts are shorter. The longest number has not quite as many digits before the point.
static const u64 DECIMAL_TEXT_MAX = 5 << 10;

// A point is a point, whatever the process has set.
class PointLocale {
  public:
    PointLocale() : before_(uselocale(plain())) {}
    ~PointLocale() { uselocale(before_); }

  private:
    static locale_t plain() {
        static const locale_t made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return made;
    }
    const locale_t before_;
};

static u64 count_digits(const char* text) { return strspn(text, "0123456789"); }

// Whether a text is a number: digits with a point or without one, an exponent or none; infinity; or hexadecimal digits.
static bool is_decimal(const char* text, bool* is_infinite) {
    text += *text == '+' || *text == '-';
    *is_infinite = !strcasecmp(text, "inf") || !strcasecmp(text, "infinity");
    if (*is_infinite) return true;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        const u64 digits = strspn(text + 2, "0123456789abcdefABCDEF");
        return digits >= 1 && digits <= 13 && !text[2 + digits];
    }
    const u64 whole = count_digits(text);
    text += whole;
    u64 fraction = 0;
    if (*text == '.') {
        fraction = count_digits(text + 1);
        text += 1 + fraction;
    }
    if (!whole && !fraction) return false;
    if (*text != 'e' && *text != 'E') return !*text;
    text++;
    text += *text == '+' || *text == '-';
    const u64 exponent = count_digits(text);
    return exponent && !text[exponent];
}

static bool parse_decimal(const u8* data, u64 bytes, long double* number) {
    char text[DECIMAL_TEXT_MAX];
    if (bytes >= DECIMAL_TEXT_MAX || memchr(data, 0, bytes)) return false;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    bool is_infinite;
    if (!is_decimal(text, &is_infinite)) return false;
    const PointLocale locale;
    *number = strtold(text, nullptr);
    return is_infinite || !std::isinf(*number);
}

// Writes up to 17 digits behind the point, and no zeros at the end; returns how many characters these are.
static u64 write_decimal(long double number, char* text) {
    const PointLocale locale;
    const int written = snprintf(text, DECIMAL_TEXT_MAX, "%.17Lf", number);
    u64 bytes = written < 0 ? 0 : (u64)written;
    while (bytes && text[bytes - 1] == '0') bytes--;
    if (!bytes) return 0;
    bytes -= text[bytes - 1] == '.';
    if (bytes == 2 && !memcmp(text, "-0", 2)) *text = '0', bytes = 1;
    return bytes;
}
