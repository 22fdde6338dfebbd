// The columns of a request, made of the words of commands: all are measured first, then written, in the same order.
#pragma once
#include <vector>

#include "request/request.hpp"
#include "resp/resp_command.hpp"
#include "resp/resp_watched.hpp"
#include "request/tables.hpp"
#include "queue/turn.hpp"

namespace door {

class RespColumns {
  public:
    // The turn tells the time. `upload`: where the only value lies, if it came in pieces.
    RespColumns(const Table& table, const Turn& turn, const Upload* upload = nullptr)
        : table_(table), turn_(turn), upload_(upload) {}

    // False: the table takes no such keys, values, or so many of them, or not such times.
    bool measure(const RespCommand& command, const RespOptions& options, const std::vector<Word>& words);
    // The request does nothing if one of these has changed. Before all else.
    bool measure(const WatchedKeys& watched);
    u64 bytes() const {
        return (has_ttls_ || has_expiries_) * 8 * n_ + has_expected_ * 8 * n_ + (n_ > 1) * 4 * n_ + (with_value_ > 1) * 4 * with_value_ + n_ + has_conditions_ * n_ +
               key_bytes_ + (upload_ ? 0 : value_bytes_);
    }
    // Gives the request columns in memory of so many bytes, which are to be written.
    void place(u8* memory, Request& request);
    // Returns how many operations these are.
    u64 write(const RespCommand& command, const RespOptions& options, const std::vector<Word>& words);
    void write(const WatchedKeys& watched);

  private:
    const Table& table_;
    const Turn& turn_;
    const Upload* const upload_;
    u64 n_ = 0, returning_ = 0, with_value_ = 0, key_bytes_ = 0, value_bytes_ = 0;
    bool has_ttls_ = false, has_expiries_ = false, has_conditions_ = false, has_expected_ = false;  // some of the operations
    // Where the next one is written; times are null where no key expires, conditions where there are none, lengths where one
    // number says all.
    u8 *times_ = nullptr, *expected_ = nullptr, *key_lengths_ = nullptr, *value_lengths_ = nullptr;
    u8 *ops_ = nullptr, *conditions_ = nullptr, *keys_ = nullptr, *values_ = nullptr;
};

}  // namespace door
