// A preloaded library that makes system calls fail or slow, allocations fail, and the wall clock jump.
//
// GPKVS_SHIM names what fails, in the environment or by shim_arm():
//     CALL:NTH:ERROR[:forever]    the NTH call fails, or from there on every one; ERROR is a number of errno.h, or "short":
//                                 only half of the bytes are written, or "late": it begins half a second late
//     slow:MILLISECONDS           every pwrite, write, fsync and fdatasync takes so much longer
//     clock:SECONDS:NTH           after every NTH reading the wall clock is SECONDS ahead, after the next NTH it is right
//     wall:FILE                   the wall clock is as many seconds ahead as the file says now, in a number of 64 bits
// CALL is pwrite, write, fallocate, ftruncate, fsync, fdatasync, open, mmap, rename, unlink or malloc. Calls count only if they
// are for a file below GPKVS_SHIM_PATH; allocations only from ALLOCATION_MIN bytes on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define ALLOCATION_MIN 256
#define NAMES 11

static const char* const names[NAMES] = {"pwrite", "write", "fallocate", "ftruncate", "fsync",
                                         "fdatasync", "open", "mmap", "rename", "malloc", "unlink"};
enum { PWRITE, WRITE, FALLOCATE, FTRUNCATE, FSYNC, FDATASYNC, OPEN, MMAP, RENAME, MALLOC, UNLINK };

static int armed = -1, error, forever, is_short, is_late;
static long nth, slow_ms;
// In memory that forked children share with their parent: what a child did can be asked after it died.
static struct {
    atomic_long calls[NAMES], failed;
} own, *counts = &own;
static long clock_seconds, clock_nth;
static const volatile int64_t* wall_seconds;  // in a file, which a test changes
static atomic_long clock_calls;
static char below[PATH_MAX];

// For a test that arms and asks in its own process.
void shim_arm(const char* text) {
    char copy[PATH_MAX];
    armed = -1;
    is_short = is_late = forever = 0;
    slow_ms = 0;
    memset(counts, 0, sizeof *counts);
    snprintf(copy, sizeof copy, "%s", text);
    char *rest = copy, *name = strsep(&rest, ":");
    if (!rest) return;
    if (strcmp(name, "clock") == 0) {
        clock_seconds = atol(strsep(&rest, ":"));
        clock_nth = rest ? atol(rest) : 1;
        return;
    }
    if (strcmp(name, "wall") == 0) {
        const int file = open(rest, O_RDONLY | O_CLOEXEC);
        void* shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *wall_seconds, PROT_READ, MAP_SHARED, file, 0);
        if (shared == MAP_FAILED) abort();
        wall_seconds = shared;
        close(file);
        return;
    }
    if (strcmp(name, "slow") == 0) {
        slow_ms = atol(rest);
        return;
    }
    nth = atol(strsep(&rest, ":"));
    const char* what = strsep(&rest, ":");
    is_short = what && strcmp(what, "short") == 0;
    is_late = what && strcmp(what, "late") == 0;
    error = what ? atoi(what) : 0;
    forever = rest && strcmp(rest, "forever") == 0;
    for (int c = 0; c < NAMES; c++)
        if (strcmp(name, names[c]) == 0) armed = c;
}
long shim_calls(const char* name) {
    for (int c = 0; c < NAMES; c++)
        if (strcmp(name, names[c]) == 0) return counts->calls[c];
    return -1;
}
long shim_failed(void) { return counts->failed; }
void shim_path(const char* path) { snprintf(below, sizeof below, "%s", path); }

__attribute__((constructor)) static void begin(void) {
    void* shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared != MAP_FAILED) counts = shared;
    const char* path = getenv("GPKVS_SHIM_PATH");
    const char* text = getenv("GPKVS_SHIM");
    if (path) shim_path(path);
    if (text) shim_arm(text);
}

static int is_of_disk(int call) { return call == PWRITE || call == WRITE || call == FSYNC || call == FDATASYNC; }

// Whether this call is to fail; a slow one returns late.
static int fails(int call) {
    if (slow_ms && is_of_disk(call)) usleep(slow_ms * 1000);
    const long count = atomic_fetch_add(&counts->calls[call], 1) + 1;
    if (armed != call || (forever ? count < nth : count != nth)) return 0;
    counts->failed++;
    if (is_late) usleep(500000);
    return !is_late;
}
static int is_ours(const char* path) {
    return below[0] && path && strncmp(path, below, strlen(below)) == 0;
}
static int is_our_file(int file) {
    char link[64], path[PATH_MAX];
    if (!below[0] || file < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(value) \
    do { \
        errno = error; \
        return value; \
    } while (0)

#define DEFINE_PWRITE(name) \
    ssize_t name(int file, const void* data, size_t bytes, off_t offset) { \
        REAL(name); \
        if (is_our_file(file) && fails(PWRITE)) { \
            if (!is_short) FAIL(-1); \
            bytes /= 2; \
        } \
        return real(file, data, bytes, offset); \
    }
DEFINE_PWRITE(pwrite)
DEFINE_PWRITE(pwrite64)

ssize_t write(int file, const void* data, size_t bytes) {
    REAL(write);
    if (is_our_file(file) && fails(WRITE)) {
        if (!is_short) FAIL(-1);
        bytes = (bytes + 1) / 2;
    }
    return real(file, data, bytes);
}

#define DEFINE_FALLOCATE(name) \
    int name(int file, off_t offset, off_t bytes) { \
        REAL(name); \
        return is_our_file(file) && fails(FALLOCATE) ? error : real(file, offset, bytes); \
    }
DEFINE_FALLOCATE(posix_fallocate)
DEFINE_FALLOCATE(posix_fallocate64)

#define DEFINE_FTRUNCATE(name) \
    int name(int file, off_t bytes) { \
        REAL(name); \
        if (is_our_file(file) && fails(FTRUNCATE)) FAIL(-1); \
        return real(file, bytes); \
    }
DEFINE_FTRUNCATE(ftruncate)
DEFINE_FTRUNCATE(ftruncate64)

#define DEFINE_SYNC(name, CALL) \
    int name(int file) { \
        REAL(name); \
        if (is_our_file(file) && fails(CALL)) FAIL(-1); \
        return real(file); \
    }
DEFINE_SYNC(fsync, FSYNC)
DEFINE_SYNC(fdatasync, FDATASYNC)

#define DEFINE_OPEN(name) \
    int name(const char* path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        const mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if (is_ours(path) && fails(OPEN)) FAIL(-1); \
        return real(path, flags, mode); \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_MMAP(name) \
    void* name(void* address, size_t bytes, int access, int flags, int file, off_t offset) { \
        REAL(name); \
        if (is_our_file(file) && fails(MMAP)) FAIL(MAP_FAILED); \
        return real(address, bytes, access, flags, file, offset); \
    }
DEFINE_MMAP(mmap)
DEFINE_MMAP(mmap64)

int rename(const char* from, const char* to) {
    REAL(rename);
    if (is_ours(from) && fails(RENAME)) FAIL(-1);
    return real(from, to);
}

int unlink(const char* path) {
    REAL(unlink);
    if (is_ours(path) && fails(UNLINK)) FAIL(-1);
    return real(path);
}

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
static int starves(size_t bytes) { return bytes >= ALLOCATION_MIN && fails(MALLOC); }

void* malloc(size_t bytes) {
    if (starves(bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
    if (starves(count * bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
    if (starves(bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(old, bytes);
}

static long jump(void) {
    if (wall_seconds) return *wall_seconds;
    if (!clock_nth) return 0;
    return atomic_fetch_add(&clock_calls, 1) / clock_nth % 2 ? clock_seconds : 0;
}
int clock_gettime(clockid_t clock, struct timespec* now) {
    REAL(clock_gettime);
    const int status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return status;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    REAL(gettimeofday);
    const int status = real(now, zone);
    if (status == 0) now->tv_sec += jump();
    return status;
}
