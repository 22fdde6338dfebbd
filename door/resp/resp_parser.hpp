// Commands as clients of Redis send them: arrays of bulk strings, or lines of words. It takes what Redis 7 takes, and says no
// in its words; a reader of answers (integers, nil) is another thing.
//
// Bytes may be cut anywhere. The parser remembers how far it has seen an incomplete command; its bytes stay where they are,
// or come again from the same command's begin, with more behind them.
#pragma once
#include <cctype>
#include <cstring>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace door {

struct Word {
    const u8* data;
    u64 size;
};

class RespParser {
  public:
    enum class Found { COMMAND, NOTHING, MORE_NEEDED, LARGE, ERROR };

    // Of a command, with all of its words.
    explicit RespParser(u64 command_bytes_max) : command_bytes_max_(command_bytes_max) {}

    // Looks at what came of a command from its begin on. COMMAND: `words` are its words, which lie in `data` (those of a line in
    // the parser, until the next call). NOTHING: an empty one. Both took `taken` bytes. LARGE: the next word has `large_bytes`
    // and may come in pieces; `words` are those before it, and `taken` bytes came before its first one. ERROR: `error` says why; the connection
    // must end. std::bad_alloc where there is no memory.
    Found parse(const u8* data, u64 size);

    // What is to be done with a large word: it is taken out of the bytes, with its end, and a word of a command is null in its
    // place; or it stays there, like others.
    void take_out();
    void leave_in() { leaves_in_ = true; }

    // Nobody knows the client yet: its commands are short.
    bool is_stranger = false;

    // Words may be large from so many bytes on.
    u64 large_bytes_min = NEVER;

    std::vector<Word> words;
    u64 taken = 0, large_bytes = 0;
    std::string error;

    // How long the incomplete command is at least.
    u64 bytes_needed() const { return at_ + bulk_bytes_; }

    // What it takes in memory.
    u64 held_bytes() const {
        return places_.capacity() * sizeof(Place) + words.capacity() * sizeof(Word) + line_words_.capacity();
    }

  private:
    static constexpr u64 LINE_BYTES_MAX = 64 << 10;
    // Each word is two places here before the command is executed.
    static constexpr i64 WORDS_MAX = 1 << 20;
    // What Redis takes; what has more is answered in its words.
    static constexpr i64 REDIS_WORDS_MAX = (1ll << 31) - 1, REDIS_WORD_BYTES_MAX = 512 << 20;
    // Where a word may come in pieces, there may be more than Redis takes: as long as a value may ever be.
    static constexpr i64 WORD_BYTES_MAX = 1 << 30;
    static constexpr u64 TAKEN_OUT = NEVER;  // the begin of a word that is not among the bytes
    static constexpr i64 STRANGER_WORDS_MAX = 10, STRANGER_WORD_BYTES_MAX = 16 << 10;

    struct Place {
        u64 begin, size;
    };

    Found parse_array(const u8* data, u64 size);
    Found parse_line(const u8* data, u64 size);
    Found end(Found found, u64 bytes);
    Found fail(std::string text);
    void find_words(const u8* data);
    bool split(const char* line, const char* end);

    const u64 command_bytes_max_;
    std::vector<Place> places_;  // of the words that were seen
    std::string line_words_;
    u64 at_ = 0;           // what was seen of the command
    i64 words_left_ = -1;  // -1: its first line was not seen
    u64 bulk_bytes_ = 0;   // of the word that begins at `at_`, with its end; 0: its length was not seen
    bool leaves_in_ = false;  // a large word that comes next
};

}  // namespace door
