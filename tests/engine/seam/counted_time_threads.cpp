// Threads raise the word of the time that counts at the same moment (test_counted_time.py); exits 1 if one sees it go back.
#include "base/counted_time.hpp"

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

static const int64_t THREADS = 4, ROUNDS = 2000000;

int main() {
    int64_t word = 0;
    std::atomic<int64_t> began{0}, faults{0};
    std::vector<std::thread> threads;
    for (int64_t number = 0; number < THREADS; number++)
        threads.emplace_back([&, number] {
            began++;
            while (began < THREADS) std::this_thread::yield();
            uint64_t latest = 0;
            for (int64_t round = 0; round < ROUNDS; round++) {
                const int64_t wall = round * THREADS + number;  // nobody's is another's
                const uint64_t now = count_time(&word, wall, 0);
                if (now < latest || now < (uint64_t)wall) faults++;
                latest = now;
            }
        });
    for (std::thread& thread : threads) thread.join();
    const int64_t lost = THREADS * ROUNDS - 1 - word;
    printf("%ld times the time went back; %ld lost\n", (long)faults, (long)lost);
    return faults || lost;
}
