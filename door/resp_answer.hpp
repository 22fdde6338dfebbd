// Answers as clients of Redis read them.
#pragma once
#include <string>
#include <vector>

#include "output.hpp"
#include "request.hpp"
#include "resp_command.hpp"

namespace door {

// One line, whatever is in the text.
std::string error_line(std::string text);

// To a command that needs no engine.
std::string answer_without_engine(const RespCommand& command, const std::vector<Word>& words);

// To a command whose request is back, in a RESP of this number.
void append_answer(const RespCommand& command, const Request& request, u32 protocol, Output& to);
void append_answer(const RespCommand& command, const Request& request, u32 protocol, std::string& to);

}  // namespace door
