// The scripts that Python knows at the moment: a snapshot, replaced whole. Those of well-known locks are programs here.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "resp/resp_parser.hpp"
#include "base/types.hpp"

namespace door {

// What a script does (server/redis/commands/scripts.py).
enum class Program : u8 { NONE, RELEASE, EXTEND, ACQUIRE, PROLONG };

class Scripts {
  public:
    // By the SHA-1 of its text, in small letters of hexadecimal digits; `keys`: how many it has, 0: any number.
    void add(const char* name, Program program, u64 keys) { known_[name] = {program, keys}; }

    // Of an EVAL or EVALSHA; NONE: it is Python's.
    Program program_of(const std::vector<Word>& words) const;

  private:
    struct Script {
        Program program;
        u64 keys;
    };

    std::unordered_map<std::string, Script> known_;
};

}  // namespace door
