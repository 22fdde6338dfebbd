// A connection that speaks RESP2, as clients of Redis do, on the default table. Answers come in the order of the commands.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "connection.hpp"
#include "resp_parser.hpp"
#include "tables.hpp"

namespace door {

struct RespCommand;

class RespConnection : public Connection {
  public:
    RespConnection(Thread& thread, std::unique_ptr<Transport> transport, std::string peer);
    ~RespConnection() override;

    bool received(const u8* data, u64 size) override;
    void answered(Request* request) override;
    bool fill(Output& output) override;
    void tick(u64) override {}
    void drain() override;
    void closed() override {}  // as with Redis, what was sent is executed
    bool wants_input() const override { return !has_enough() && !is_ending_; }

  private:
    struct Call;

    void take_waiting_commands();
    u64 take_commands(const u8* data, u64 size);
    void execute();
    std::string request(const RespCommand& command);
    void answer(std::string text);
    void end_with(const std::string& text);
    Call* new_call(const RespCommand* command, u64 bytes);
    void append(Call* call);
    void remove_first();
    void destroy(Call* call);
    void leave_results();
    void count_input();
    bool has_enough() const { return calls_ >= CALLS_MAX || held_bytes_ >= held_bytes_max_; }
    static void write(const Call& call, Output& output);

    // Commands that wait for their answers, whatever these are.
    static constexpr u64 CALLS_MAX = 1024;

    const u64 held_bytes_max_;
    RespParser parser_;
    std::vector<u8> input_;  // of a command that is not complete, or of commands that are not begun
    u64 counted_input_ = 0;
    bool is_ending_ = false;  // no more commands are taken

    Call* first_ = nullptr;  // a list, in the order of the commands
    Call* last_ = nullptr;
    u64 calls_ = 0, held_bytes_ = 0;
};

}  // namespace door
