// What a processor must have for the kernels, asked before any of them runs: they would end the process without a word.
// This file alone is compiled for every processor of its kind (CMakeLists.txt).
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

// What this processor lacks, each with a semicolon after it. The names are those of /proc/cpuinfo.
extern "C" const char* gpkvs_processor_lacks() {
#if defined(__x86_64__)
    // x86-64-v2: bits of ECX, of 1 and of 0x80000001.
    unsigned a, b, c = 0, d, extended = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid(0x80000001, &a, &b, &extended, &d)) return "cpuid;";
    const struct {
        unsigned has;
        const char* name;
    } needs[] = {{c >> 0 & 1, "pni;"},     {c >> 9 & 1, "ssse3;"},   {c >> 13 & 1, "cx16;"},       {c >> 19 & 1, "sse4_1;"},
                 {c >> 20 & 1, "sse4_2;"}, {c >> 23 & 1, "popcnt;"}, {extended & 1, "lahf_lm;"}};
    static char lacks[64];
    char* to = lacks;
    for (const auto& need : needs)
        if (!need.has)
            for (const char* from = need.name; *from; from++) *to++ = *from;
    *to = 0;
    return lacks;
#elif defined(__aarch64__)
    const unsigned long has_crc32 = 1 << 7;
    return getauxval(AT_HWCAP) & has_crc32 ? "" : "crc32;";
#else
    return "";
#endif
}
