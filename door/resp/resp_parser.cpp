#include "resp/resp_parser.hpp"

#include "base/texts.hpp"

namespace door {

namespace {

// As Redis reads numbers: no sign but a minus, no zeros in front, no spaces. False: it is none.
bool parse_number(const u8* at, const u8* end, i64& number) {
    const bool is_negative = at < end && *at == '-';
    at += is_negative;
    const u64 digits = (u64)(end - at);
    if (digits == 0 || digits > 19 || (*at == '0' && (digits > 1 || is_negative))) return false;
    u64 size = 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return false;
        size = 10 * size + (u64)(*at - '0');
    }
    number = (i64)(is_negative ? 0 - size : size);
    return size < 1ull << 63 || (is_negative && size == 1ull << 63);
}

// As in a string of C, which ends at a zero byte: nothing is found behind it.
const u8* find(u8 letter, const u8* data, u64 size) {
    const u8* const found = (const u8*)memchr(data, letter, size);
    return found && !memchr(data, 0, (u64)(found - data)) ? found : nullptr;
}

int hex_value(char digit) {
    return isdigit((u8)digit) ? digit - '0' : tolower((u8)digit) - 'a' + 10;
}

// Before a word any space is skipped; these end one.
bool ends_word(char letter) { return letter == ' ' || letter == '\t' || letter == '\r' || letter == '\n'; }

char unescaped(char letter) {
    switch (letter) {
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case 'b': return '\b';
        case 'a': return '\a';
        default: return letter;
    }
}

}  // namespace

RespParser::Found RespParser::parse(const u8* data, u64 size) {
    if (!size) return Found::MORE_NEEDED;
    return *data == '*' ? parse_array(data, size) : parse_line(data, size);
}

RespParser::Found RespParser::parse_array(const u8* data, u64 size) {
    i64 number;
    if (words_left_ < 0) {
        const u8* const line_end = find('\r', data, size);
        if (!line_end && size > LINE_BYTES_MAX) return fail("too big mbulk count string");
        if (!line_end || line_end + 1 == data + size) return Found::MORE_NEEDED;
        if (!parse_number(data + 1, line_end, number) || number > REDIS_WORDS_MAX) return fail("invalid multibulk length");
        if (is_stranger && number > STRANGER_WORDS_MAX) return fail("unauthenticated multibulk length");
        if (number > WORDS_MAX) return fail("a command of more than " + grouped(WORDS_MAX) + " words: split it");
        at_ = (u64)(line_end - data) + 2;
        if (number <= 0) return end(Found::NOTHING, at_);
        words_left_ = number;
    }
    while (words_left_) {
        if (!bulk_bytes_) {
            const u8* const begin = data + at_;
            const u8* const line_end = size > at_ ? find('\r', begin, size - at_) : nullptr;
            if (!line_end && size > at_ + LINE_BYTES_MAX) return fail("too big bulk count string");
            if (!line_end || line_end + 1 == data + size) return Found::MORE_NEEDED;
            if (*begin != '$') return fail(std::string("expected '$', got '") + (char)*begin + "'");
            const bool may_be_large = large_bytes_min != NEVER && !leaves_in_;
            if (!parse_number(begin + 1, line_end, number) || number < 0 ||
                number > (may_be_large ? WORD_BYTES_MAX : REDIS_WORD_BYTES_MAX))
                return fail("invalid bulk length");
            if (is_stranger && number > STRANGER_WORD_BYTES_MAX) return fail("unauthenticated bulk length");
            if (may_be_large && (u64)number >= large_bytes_min) {
                taken = (u64)(line_end - data) + 2;
                large_bytes = (u64)number;
                find_words(data);
                return Found::LARGE;
            }
            leaves_in_ = false;
            at_ = (u64)(line_end - data) + 2;
            if (at_ + (u64)number > command_bytes_max_)
                return fail("a command of more than " + grouped(command_bytes_max_) + " bytes (message_bytes_max): raise --memory-max, or --message-bytes-max");
            bulk_bytes_ = (u64)number + 2;
        }
        if (size - at_ < bulk_bytes_) return Found::MORE_NEEDED;
        places_.push_back({at_, bulk_bytes_ - 2});
        at_ += bulk_bytes_;
        bulk_bytes_ = 0;
        words_left_--;
    }
    find_words(data);
    return end(Found::COMMAND, at_);
}

void RespParser::find_words(const u8* data) {
    words.clear();
    for (const Place& place : places_)
        words.push_back({place.begin == TAKEN_OUT ? nullptr : data + place.begin, place.size});
}

void RespParser::take_out() {
    places_.push_back({TAKEN_OUT, large_bytes});
    at_ = taken;
    words_left_--;
}

RespParser::Found RespParser::parse_line(const u8* data, u64 size) {
    const u8* const line_end = find('\n', data, size);
    if (!line_end) return size > LINE_BYTES_MAX ? fail("too big inline request") : Found::MORE_NEEDED;
    const u64 bytes = (u64)(line_end - data);
    if (!split((const char*)data, (const char*)data + bytes)) return fail("unbalanced quotes in request");
    words.clear();
    for (const Place& place : places_) words.push_back({(const u8*)line_words_.data() + place.begin, place.size});
    return end(words.empty() ? Found::NOTHING : Found::COMMAND, bytes + 1);
}

// Words of a line are apart by spaces; quotes hold some together, and double ones know escapes. False: a quote does not end,
// or goes on behind its end.
bool RespParser::split(const char* at, const char* end) {
    line_words_.clear();
    places_.clear();
    if (end > at && end[-1] == '\r') end--;
    for (;;) {
        while (at < end && isspace((u8)*at)) at++;
        if (at == end) return true;
        const u64 begin = line_words_.size();
        char quote = 0;
        for (bool ends = false; !ends;) {
            if (at == end) {
                if (quote) return false;
                break;
            }
            const char letter = *at++;
            if (!quote) {
                if (ends_word(letter)) ends = true;
                else if (letter == '"' || letter == '\'') quote = letter;
                else line_words_ += letter;
            } else if (letter == quote) {
                if (at < end && !isspace((u8)*at)) return false;
                ends = true;
            } else if (letter != '\\' || at == end) {
                line_words_ += letter;
            } else if (quote == '\'') {
                line_words_ += *at == '\'' ? *at++ : letter;
            } else if (*at == 'x' && end - at > 2 && isxdigit((u8)at[1]) && isxdigit((u8)at[2])) {
                line_words_ += (char)(16 * hex_value(at[1]) + hex_value(at[2]));
                at += 3;
            } else {
                line_words_ += unescaped(*at++);
            }
        }
        places_.push_back({begin, line_words_.size() - begin});
    }
}

RespParser::Found RespParser::end(Found found, u64 bytes) {
    taken = bytes;
    places_.clear();
    at_ = bulk_bytes_ = 0;
    words_left_ = -1;
    return found;
}

RespParser::Found RespParser::fail(std::string text) {
    error = "Protocol error: " + text;
    return Found::ERROR;
}

}  // namespace door
