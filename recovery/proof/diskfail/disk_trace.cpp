// A preloaded library that records what a process does to the files of one directory, with the data.
//
// All threads share one sequence. A write and a flush have a begin and an end: a flush makes durable what had been
// written when it began. Stores to the mapped file `root` are found by comparing it, at each event, with what it held.
// Flushes are made slower on request: a memory file system has none, and a disk's let work pile up. Those of one file can
// be held: each waits until it is let through.
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unordered_set>
#include <vector>

namespace {

using u64 = uint64_t;

enum Kind : u64 { WRITE, WRITE_END, SIZE, CREATE, RENAME, UNLINK, FLUSH, FLUSH_END, NAMES_FLUSH, NAMES_FLUSH_END, MARK };

struct Event {
    u64 kind, id;    // an end has the id of its begin
    u64 file;        // its inode
    u64 at, bytes;   // of a write; the size; the numbers of a mark
    const char* data;  // of a write; the name, and after a 0 the second one
};

const u64 SECTOR = 512;
// The first access of a thread to a recorder that is off must cost nothing and lock nothing.
volatile bool is_on = false;
std::mutex* mutex_of() {
    static std::mutex* mutex = new std::mutex;
    return mutex;
}
std::vector<Event>* events = nullptr;
std::unordered_set<u64>* inodes = nullptr;
std::string* directory = nullptr;
u64 directory_inode, next_id, mapped_inode, mapped_bytes;
const char* mapped = nullptr;
char* shadow = nullptr;
volatile u64 delay_us = 0, pseudo_random = 88172645463325252ull;
// Of flushes that are held: of which file, how many may go on, and how many have come so far.
u64 held_inode = 0, let_through = 0, held_count = 0;
thread_local bool wakes_nobody = false;
std::condition_variable* changed_of() {
    static std::condition_variable* changed = new std::condition_variable;
    return changed;
}

char* copy_of(const void* data, u64 bytes) {
    char* copy = static_cast<char*>(malloc(bytes ? bytes : 1));
    if (!copy) abort();
    memcpy(copy, data, bytes);
    return copy;
}
void add(Kind kind, u64 id, u64 file, u64 at, u64 bytes, const char* data) {
    events->push_back({kind, id, file, at, bytes, data});
}

// Records what was stored to the mapped file since the last look, as writes that have ended. Call with the mutex.
void look_at_mapped() {
    if (!mapped) return;
    for (u64 at = 0; at < mapped_bytes; at += SECTOR)
        if (memcmp(mapped + at, shadow + at, SECTOR) != 0) {
            memcpy(shadow + at, mapped + at, SECTOR);
            const u64 id = next_id++;
            add(WRITE, id, mapped_inode, at, SECTOR, copy_of(shadow + at, SECTOR));
            add(WRITE_END, id, mapped_inode, 0, 0, nullptr);
        }
}

void unmap() {
    if (mapped) munmap(const_cast<char*>(mapped), mapped_bytes);
    free(shadow);
    mapped = shadow = nullptr;
}

void map_root(const char* path) {
    unmap();
    const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return;
    struct stat found;
    if (fstat(file, &found) == 0 && found.st_size) {
        void* at = mmap(nullptr, found.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) {
            mapped = static_cast<const char*>(at);
            mapped_bytes = (u64)found.st_size / SECTOR * SECTOR;
            mapped_inode = found.st_ino;
            shadow = copy_of(mapped, mapped_bytes);
        }
    }
    close(file);
}

// The name of a path in the directory; nullptr if it lies elsewhere, or is not to be recorded.
const char* name_of(const char* path) {
    const size_t length = directory->size();
    if (!path || strncmp(path, directory->c_str(), length) != 0 || path[length] != '/') return nullptr;
    const char* name = path + length + 1;
    return strchr(name, '/') || strcmp(name, "LOCK") == 0 || strncmp(name, "recovery.json", 13) == 0 ? nullptr : name;
}

u64 inode_of(int file) {
    struct stat found;
    return fstat(file, &found) == 0 ? (u64)found.st_ino : 0;
}
bool is_ours(u64 inode) { return inodes->count(inode) != 0; }

u64 random_below(u64 limit) {
    u64 x = pseudo_random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    pseudo_random = x;
    return limit ? x % limit : 0;
}
void be_slow(u64 share) {
    if (!delay_us) return;
    const u64 wait = random_below(4) ? random_below(delay_us / share + 1) : 0;
    if (wait) usleep((useconds_t)wait);
}

struct Held {
    std::lock_guard<std::mutex> lock{*mutex_of()};
};

void wait_if_held(u64 inode) {
    std::unique_lock<std::mutex> lock(*mutex_of());
    if (!held_inode || held_inode != inode) return;
    held_count++;
    changed_of()->wait(lock, [=] { return held_inode != inode || let_through > 0; });
    if (let_through) let_through--;
}

template <class Call>
ssize_t traced_write(int file, off_t at, const void* data, u64 bytes, Call call) {
    if (!is_on) return call();
    u64 id = 0, inode;
    {
        Held held;
        inode = inode_of(file);
        if (!is_on || !is_ours(inode)) inode = 0;
        else {
            look_at_mapped();
            add(WRITE, id = next_id++, inode, (u64)at, bytes, copy_of(data, bytes));
        }
    }
    if (!inode) return call();
    be_slow(16);
    const ssize_t result = call();
    if (result != (ssize_t)bytes) abort();  // the recording would be wrong
    Held held;
    if (is_on) add(WRITE_END, id, inode, 0, 0, nullptr);
    return result;
}

bool is_small(int file) {
    struct stat found;
    return fstat(file, &found) == 0 && found.st_size < 1 << 20;
}

int traced_flush(int file, long number) {
    if (!is_on) return (int)syscall(number, file);
    u64 id = 0, inode, kind = FLUSH;
    {
        Held held;
        inode = inode_of(file);
        if (inode == directory_inode) kind = NAMES_FLUSH;
        else if (!is_on || !is_ours(inode)) inode = 0;
        if (inode) {
            look_at_mapped();
            add((Kind)kind, id = next_id++, inode, 0, 0, nullptr);
        }
    }
    // The flush of the large file takes longest: others overtake it.
    if (inode) {
        be_slow(is_small(file) ? 8 : 1);
        wait_if_held(inode);
    }
    const int result = (int)syscall(number, file);
    if (!inode) return result;
    Held held;
    if (is_on) {
        look_at_mapped();
        add((Kind)(kind + 1), id, inode, 0, 0, nullptr);
    }
    return result;
}

void note_size(int file, u64 size) {
    Held held;
    const u64 inode = inode_of(file);
    if (!is_on || !is_ours(inode)) return;
    look_at_mapped();
    add(SIZE, next_id++, inode, 0, size, nullptr);
}

int traced_open(int directory_file, const char* path, int flags, mode_t mode) {
    const char* name = is_on ? name_of(path) : nullptr;
    if (!name) return (int)syscall(SYS_openat, directory_file, path, flags, mode);
    Held held;
    struct stat before;
    const bool was_there = stat(path, &before) == 0;
    const int file = (int)syscall(SYS_openat, directory_file, path, flags, mode);
    if (file < 0 || !is_on) return file;
    struct stat found;
    if (fstat(file, &found) || !S_ISREG(found.st_mode)) return file;
    inodes->insert(found.st_ino);
    look_at_mapped();
    if (!was_there) add(CREATE, next_id++, found.st_ino, 0, 0, copy_of(name, strlen(name) + 1));
    else if (flags & O_TRUNC) add(SIZE, next_id++, found.st_ino, 0, 0, nullptr);
    return file;
}

}  // namespace

extern "C" {

// Begins to record what happens in a directory; its path is written as callers will write it.
void disk_trace_start(const char* path, u64 delay, u64 seed) {
    Held held;
    if (!events) events = new std::vector<Event>;
    if (!inodes) inodes = new std::unordered_set<u64>;
    delete directory;
    directory = new std::string(path);
    inodes->clear();
    struct stat found;
    if (stat(path, &found)) abort();
    directory_inode = found.st_ino;
    next_id = 1;
    delay_us = delay;
    pseudo_random = seed | 1;
    map_root((*directory + "/root").c_str());
    is_on = true;
}
void disk_trace_add(const char* path) {  // a file that is there already
    Held held;
    struct stat found;
    if (stat(path, &found) == 0) inodes->insert(found.st_ino);
}
void disk_trace_stop() {
    Held held;
    if (is_on) look_at_mapped();
    is_on = false;
    unmap();
}
u64 disk_trace_count() { return events ? events->size() : 0; }
const Event* disk_trace_events() { return events->data(); }
void disk_trace_clear() {
    Held held;
    for (const Event& event : *events) free(const_cast<char*>(event.data));
    events->clear();
}
void disk_trace_mark(u64 kind, u64 number) {
    Held held;
    if (!is_on) return;
    look_at_mapped();
    add(MARK, next_id++, 0, kind, number, nullptr);
}
// From now on each flush of a file waits before it begins to work; nullptr: of none, and those that wait go on.
void disk_trace_hold(const char* path) {
    Held held;
    struct stat found;
    held_inode = path && stat(path, &found) == 0 ? (u64)found.st_ino : 0;
    let_through = held_count = 0;
    changed_of()->notify_all();
}
// Lets one flush go on, that waits or is the next to come.
void disk_trace_let_through() {
    Held held;
    let_through++;
    changed_of()->notify_all();
}
// How many flushes have waited, or do, since the hold began.
u64 disk_trace_held() {
    Held held;
    return held_count;
}
// Calls a function of four words. A thread that it is to wake up sleeps on.
void disk_trace_call_unheard(void (*function)(u64, u64, u64, u64), const u64* words) {
    wakes_nobody = true;
    function(words[0], words[1], words[2], words[3]);
    wakes_nobody = false;
}
int pthread_cond_signal(pthread_cond_t* condition) {
    using Signal = int (*)(pthread_cond_t*);
    // An unversioned look-up would find the one of old programs.
    static const Signal versioned = (Signal)dlvsym(RTLD_NEXT, "pthread_cond_signal", "GLIBC_2.3.2");
    static const Signal signal = versioned ? versioned : (Signal)dlsym(RTLD_NEXT, "pthread_cond_signal");
    return wakes_nobody ? 0 : signal(condition);
}
// Flushes and writes are slow only while this is not 0.
void disk_trace_delay(u64 microseconds) { delay_us = microseconds; }

#define DEFINE_PWRITE(name)                                                                                       \
    ssize_t name(int file, const void* data, size_t bytes, off_t at) {                                            \
        return traced_write(file, at, data, bytes, [=] { return (ssize_t)syscall(SYS_pwrite64, file, data, bytes, at); }); \
    }
DEFINE_PWRITE(pwrite)
DEFINE_PWRITE(pwrite64)

ssize_t write(int file, const void* data, size_t bytes) {
    const auto call = [=] { return (ssize_t)syscall(SYS_write, file, data, bytes); };
    if (!is_on) return call();
    const off_t at = lseek(file, 0, SEEK_CUR);
    return at < 0 ? call() : traced_write(file, at, data, bytes, call);
}

// Nothing here writes so; if that changes, the recording must not silently miss it.
static void refuse_vectors(int file) {
    if (!is_on) return;
    Held held;
    if (is_ours(inode_of(file))) abort();
}
ssize_t writev(int file, const struct iovec* parts, int count) {
    refuse_vectors(file);
    return (ssize_t)syscall(SYS_writev, file, parts, count);
}
#define DEFINE_PWRITEV(name)                                                               \
    ssize_t name(int file, const struct iovec* parts, int count, off_t at) {               \
        refuse_vectors(file);                                                              \
        return (ssize_t)syscall(SYS_pwritev, file, parts, count, at, 0);                   \
    }
DEFINE_PWRITEV(pwritev)
DEFINE_PWRITEV(pwritev64)

int fsync(int file) { return traced_flush(file, SYS_fsync); }
int fdatasync(int file) { return traced_flush(file, SYS_fdatasync); }

#define DEFINE_FALLOCATE(name)                                                     \
    int name(int file, off_t at, off_t bytes) {                                    \
        if (syscall(SYS_fallocate, file, 0, at, bytes)) return errno;              \
        struct stat found;                                                         \
        if (is_on && fstat(file, &found) == 0) note_size(file, found.st_size);     \
        return 0;                                                                  \
    }
DEFINE_FALLOCATE(posix_fallocate)
DEFINE_FALLOCATE(posix_fallocate64)

// A hole that is punched reads as zeros: recorded as a write of them, of which a crash keeps any part.
#define DEFINE_PUNCH(name)                                                                    \
    int name(int file, int mode, off_t at, off_t bytes) {                                     \
        const auto call = [=] { return (int)syscall(SYS_fallocate, file, mode, at, bytes); }; \
        if (!is_on || !(mode & FALLOC_FL_PUNCH_HOLE)) return call();                          \
        const std::vector<char> zeros(bytes);                                                 \
        traced_write(file, at, zeros.data(), bytes, [&] { return call() ? -1 : bytes; });     \
        return 0;                                                                             \
    }
DEFINE_PUNCH(fallocate)
DEFINE_PUNCH(fallocate64)

#define DEFINE_FTRUNCATE(name)                                                     \
    int name(int file, off_t bytes) {                                              \
        const int result = (int)syscall(SYS_ftruncate, file, bytes);               \
        if (is_on && result == 0) note_size(file, (u64)bytes);                     \
        return result;                                                             \
    }
DEFINE_FTRUNCATE(ftruncate)
DEFINE_FTRUNCATE(ftruncate64)

#define MODE_OF(flags)                               \
    mode_t mode = 0;                                 \
    if ((flags) & (O_CREAT | O_TMPFILE)) {           \
        va_list rest;                                \
        va_start(rest, flags);                       \
        mode = va_arg(rest, mode_t);                 \
        va_end(rest);                                \
    }
#define DEFINE_OPEN(name)                                        \
    int name(const char* path, int flags, ...) {                 \
        MODE_OF(flags)                                           \
        return traced_open(AT_FDCWD, path, flags, mode);         \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

// ARM has these calls with folders alone.
int rename(const char* from, const char* to) {
    const char *old_name = is_on ? name_of(from) : nullptr, *new_name = is_on ? name_of(to) : nullptr;
    if (!old_name || !new_name) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    Held held;
    look_at_mapped();
    const int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    struct stat found;
    if (result == 0 && stat(to, &found) == 0) {
        const std::string names = std::string(old_name) + '\0' + new_name;
        add(RENAME, next_id++, found.st_ino, 0, 0, copy_of(names.c_str(), names.size() + 1));
        if (strcmp(new_name, "root") == 0) map_root(to);
    }
    return result;
}

int unlink(const char* path) {
    const char* name = is_on ? name_of(path) : nullptr;
    if (!name) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    Held held;
    look_at_mapped();
    const int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (result == 0) add(UNLINK, next_id++, 0, 0, 0, copy_of(name, strlen(name) + 1));
    return result;
}

}  // extern "C"
