// Answers as clients of Redis read them.
#pragma once
#include <string>
#include <vector>

#include "base/output.hpp"
#include "request/request.hpp"
#include "base/request_id.hpp"
#include "resp/resp_command.hpp"
#include "base/stats.hpp"

namespace door {

// One line, whatever is in the text; it is counted.
std::string error_line(std::string text, RespStats& stats);

// Where there is no room; what there is none for.
std::string full_error(const std::string& why, const std::string& request_id = new_request_id());

// To a request that was not done, without its end.
std::string error_of(const Request& request, LateRequestId& id);

// Whether some of it was not done, and its answer has the id.
bool is_told_with_id(const Request& request);

// To a command that needs no engine.
std::string answer_without_engine(const RespCommand& command, const std::vector<Word>& words);

// The next of a request's operations: those of one command.
struct RespPart {
    const RespCommand* command;
    u64 n;
    i32 first_byte = 0, last_byte = 0;  // of a value that is returned in part
    u64 words = 0;
};

// To a request that is back: one command, or a transaction.
struct RespAnswer {
    Request& request;  // the values that are lent to it go to the output
    const RespPart* parts;
    u64 count;
    bool is_transaction;
    u32 protocol;  // 2 or 3: RESP2 or RESP3
    RespStats& stats;
    LateRequestId& id;

    void append(Output& to) const;
};

}  // namespace door
