// Numbers of marked items, on a GPU.
#include "base/platform.cuh"

// pick_numbers: the numbers of the items that are marked with 1; `ends` counts them up to each item.
#define PICK_NUMBERS_ARGS(F) F(const u8*, marks) F(const u32*, ends) F(u32*, numbers)

GPKVS_KERNEL(pick_numbers, PICK_NUMBERS_ARGS) {
    if (a.marks[i]) a.numbers[a.ends[i] - 1] = (u32)i;
}
