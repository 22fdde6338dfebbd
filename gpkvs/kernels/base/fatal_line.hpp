// The end of a process whose store must not go on, from native code: one line on stderr, then status 70 (gpkvs/process/fatal.py).
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <unistd.h>

// One line, put together without an allocation and written at once: a handler of signals may use it.
class FatalLine {
public:
    FatalLine& operator<<(const char* text) {
        while (*text && end_ < text_ + sizeof text_) *end_++ = *text++;
        return *this;
    }

    FatalLine& operator<<(uint64_t number) {
        char digits[21];
        char* first = digits + sizeof digits;
        *--first = 0;
        do *--first = static_cast<char>('0' + number % 10);
        while (number /= 10);
        return *this << first;
    }

    [[noreturn]] void end_process() const {
        const char* text = text_;
        while (text < end_) {
            const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(end_ - text));
            if (written <= 0) break;  // then the exit status must say it all
            text += written;
        }
        _exit(EXIT_FATAL);
    }

private:
    static constexpr int EXIT_FATAL = 70;
    char text_[8192];
    char* end_ = text_;
};

// Ends the process after a write or a flush that failed: what was dirty may be lost, and a second try might seem to succeed.
[[noreturn]] inline void end_after_failed_write(const char* what, int error) {
    FatalLine line;
    line << "gpkvs: " << what << " failed: " << strerror(error)
         << ". The process stops here; the store is recovered when it is next opened\n";
    line.end_process();
}

// Ends the process after an error of a GPU's driver, while the transaction flag is ACTIVE: only recovery may go on.
[[noreturn]] inline void end_after_driver_error(const char* what, int error) {
    FatalLine line;
    line << "gpkvs: " << what << ": the driver of the GPU says error " << static_cast<uint64_t>(error)
         << ". The process stops here; the store is recovered when it is next opened\n";
    line.end_process();
}

// Writes all of it, into space that is reserved.
inline void write_whole(int file, const void* data, uint64_t bytes, uint64_t offset) {
    const char* at = static_cast<const char*>(data);
    while (bytes) {
        const ssize_t written = pwrite(file, at, bytes, static_cast<off_t>(offset));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) end_after_failed_write("a write to the store", written ? errno : ENOSPC);
        at += written;
        offset += static_cast<uint64_t>(written);
        bytes -= static_cast<uint64_t>(written);
    }
}
