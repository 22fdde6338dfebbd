// A connection that speaks RESP, as clients of Redis do. Answers come in the order of the commands.
//
// The door executes plain commands by itself; Python gets all others, as messages of one call. Such a command waits until the
// engine is done with those before it, and no other one is taken until Python has answered and asks for the next one.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "call.hpp"
#include "connection.hpp"
#include "resp_command.hpp"
#include "resp_parser.hpp"
#include "resp_session.hpp"

namespace door {

class Forwarded;

class RespConnection final : public Connection, public Responder {
  public:
    RespConnection(Thread& thread, std::unique_ptr<Transport> transport, std::string peer);
    ~RespConnection() override;

    bool received(const u8* data, u64 size) override;
    void answered(Request* request) override;
    bool fill(Output& output) override;
    void tick(u64) override {}
    void drain() override;
    void closed() override;
    bool wants_input() const override { return may_take_commands() && !is_half_closed_; }
    bool input_ended() override;  // as with Redis, what was sent is executed and answered

    // What Python says.
    Connection& responds_over() override { return *this; }
    void ask() override;
    void respond(Message&& response) override;
    void finish(const Status& status) override;
    void set_session(const RespSession& session) override { session_ = session; }

  private:
    struct Pending;

    void take_waiting_commands();
    u64 take_commands(const u8* data, u64 size);
    void execute();
    bool may(const RespCommand& command);
    bool request(const RespCommand& command);
    void hand_on();
    void give_python();
    void end_handed(Message&& response);
    void answer(std::string text);
    void end_with(const std::string& text);
    Pending* append(const RespCommand* command, u64 bytes, u64 bytes_behind);
    void remove_first();
    void leave_results();
    void count_input();
    bool has_enough() const { return pending_ >= PENDING_MAX || held_bytes_ >= held_bytes_max_; }
    bool is_python_busy() const { return handed_ || (python_ && !is_asked_); }
    bool may_take_commands() const { return !has_enough() && !is_python_busy() && !is_ending_; }
    static void write(const Pending& pending, Output& output);

    // Commands that wait for their answers, whatever these are.
    static constexpr u64 PENDING_MAX = 1024;

    const u64 held_bytes_max_;
    RespParser parser_;
    std::vector<u8> input_;  // of a command that is not complete, or of commands that are not begun
    u64 counted_input_ = 0;
    bool is_half_closed_ = false;  // the client sends no more
    bool is_ending_ = false;       // no more commands are taken

    Pending* first_ = nullptr;  // a list, in the order of the commands
    Pending* last_ = nullptr;
    u64 pending_ = 0, held_bytes_ = 0;
    u64 executing_ = 0;  // that the engine has

    // Python's side.
    CallHead head_;
    Forwarded* python_ = nullptr;  // the call; null: there is none yet, or it has ended
    Pending* handed_ = nullptr;    // the command that Python has to answer: the last one
    bool is_asked_ = false;        // Python takes one more
    RespSession session_;
};

}  // namespace door
