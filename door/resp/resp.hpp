// A connection that speaks RESP, as clients of Redis do. Answers come in the order of the commands.
//
// The door executes plain commands by itself; Python gets all others, as messages of one call. Such a command waits until the
// engine is done with those before it, and no other one is taken until Python has answered and asks for the next one. Those
// that came with it and have short answers go along, and their answers come at once, so an answer's size stays bounded.
//
// The commands of a transaction are kept until EXEC, and are one request then, with the keys that are watched. If Python is
// needed, it gets all of them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "net/connection.hpp"
#include "net/foreign.hpp"
#include "request/handler.hpp"
#include "resp/resp_answer.hpp"
#include "resp/resp_incoming.hpp"
#include "resp/resp_parser.hpp"
#include "resp/resp_session.hpp"
#include "resp/resp_watched.hpp"
#include "resp/subscriber.hpp"

namespace door {

class Forwarded;
struct Table;

class RespConnection final : public Connection, public Responder {
  public:
    RespConnection(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival);
    ~RespConnection() override;

    bool received(const u8* data, u64 size) override;
    void answered(Request* request) override;
    void describe(const Request& request, DoorSlowCall& call) override;
    bool fill(Output& output) override;
    void tick(u64 now_ns) override;
    void drain() override;
    void closed() override;
    bool wants_input() const override { return (may_take_commands() || is_receiving()) && !is_half_closed_; }
    bool lingers() const override { return is_refused_; }
    bool has_asked() const override {
        const bool has_sent = first_ || (incoming_ && incoming_->is_decided && incoming_->upload);
        return has_sent && !is_refused_;
    }
    void end_patience(const std::string& why) override { end_with("ERR " + why, STATS_SILENT); }
    void take_leave(const std::string& why, Output& output) override;
    bool input_ended() override;  // as with Redis, what was sent is executed and answered

    // What Python says.
    Connection& responds_over() override { return *this; }
    void ask() override;
    void respond(Message&& response) override;
    void finish(const Status& status) override;
    void set_session(const RespSession& session) override { session_ = session; }
    void set_subscriptions(std::shared_ptr<const Subscriptions> subscriptions) override { next_subscriptions_ = subscriptions; }

  private:
    struct Pending;

    // A command between MULTI and EXEC; MULTI itself is the first.
    struct Queued {
        const RespCommand* command;
        Message message;
    };

    void take_waiting_commands();
    u64 take_commands(const u8* data, u64 size);
    u64 take_possible_commands(const u8* data, u64 size);
    enum class Begun { BEGUN, LEFT_IN, WAITS, ENDS };
    Begun begin_incoming();
    bool may_come_in_pieces() const;
    void reserved();
    void receive_waiting();
    bool execute();
    bool execute_incoming();
    bool answer_foreigner(std::string_view first);
    void end_foreign(Language language);
    bool may(const RespCommand& command, const RespOptions& options);
    bool may(u8 rights);
    bool queue_or_execute(const RespCommand& command, const RespOptions& options);
    bool queue(const RespCommand& command, const char* text);
    bool execute_queue(const RespCommand& exec);
    bool watch(const RespCommand& command, const RespOptions& options);
    void note_watched(const Pending& pending);
    void forget_watched();
    bool give_watched();
    void end_queue(const RespCommand& last);
    void drop_queue();
    void count(const RespCommand& command);
    Message new_message();
    const Table* table();
    bool is_plain(const RespCommand& command, const RespOptions& options);
    template <class ForEach>
    bool lend(const ForEach& for_each);
    bool hand_on();
    bool join();
    void give_python();
    void end_handed(Message&& response);
    void subscribe();
    void look_at_subscriber();
    void end_subscriptions();
    void answer(std::string text);
    bool wait_or_refuse(const std::string& text);
    bool may_wait();
    void refuse(const std::string& text);
    void end_with(const std::string& text, StatsConnection why);
    void end_refused(std::string answer);
    Pending* new_pending(u64 bytes, u64 bytes_behind);
    void append(Pending* pending);
    void remove_first();
    void destroy(Pending* pending);
    void leave_results();
    void count_input();
    bool is_in_transaction() const { return !queue_.empty(); }
    bool has_enough() const { return pending_ >= PENDING_MAX || held_bytes_ >= held_bytes_max_; }
    bool is_python_busy() const { return handed_ || (python_ && !is_asked_); }
    bool may_take_commands() const {
        return !has_enough() && !is_python_busy() && !is_full_ && !is_ending_ && !watching_ && !is_value_missing();
    }
    bool is_value_missing() const { return incoming_ && !incoming_->is_whole(); }
    bool is_receiving() const { return is_value_missing() && incoming_->is_decided && !is_ending_; }
    void write(Pending& pending, Output& output);

    // Commands that wait for their answers, whatever these are.
    static constexpr u64 PENDING_MAX = 1024;
    // Commands that Python gets at once.
    static constexpr u64 JOINED_MAX = 64;

    const u64 held_bytes_max_;
    RespParser parser_;
    std::vector<u8> input_;  // of a command that is not complete, or of commands that are not begun
    u64 counted_input_ = 0;
    std::unique_ptr<RespIncoming> incoming_;  // of the command whose head begins `input_`
    std::unique_ptr<Upload> upload_;          // of the command that is executed now
    bool must_not_wait_ = false;  // that command's value would not be there when it is read again
    // There is no room for the next command: nothing is read until there is, or that takes too long.
    bool is_full_ = false;
    u64 full_since_ns_ = NEVER;
    bool has_begun_ = false;       // the client has sent something
    bool is_half_closed_ = false;  // it sends no more
    bool is_ending_ = false;       // no more commands are taken
    bool is_refused_ = false;      // what it still sends is thrown away

    Pending* first_ = nullptr;  // a list, in the order of the commands
    Pending* last_ = nullptr;
    u64 pending_ = 0, held_bytes_ = 0;
    u64 executing_ = 0;  // that the engine has
    std::vector<Queued> queue_;  // a transaction
    u64 queued_bytes_ = 0;
    Pending* watching_ = nullptr;  // a WATCH that the engine has: no other command is taken
    WatchedKeys watched_;
    u64 watched_bytes_ = 0;  // charged for them, and for those of that WATCH

    // Python's side.
    CallHead head_;
    Forwarded* python_ = nullptr;  // the call; null: there is none yet, or it has ended
    Pending* handed_ = nullptr;    // the command, or some, that Python has to answer: the last one
    u64 joined_ = 0;               // how many these are
    bool is_joining_ = false;      // more may come
    bool takes_more_ = false;      // and go along
    u64 answered_ = 0;             // messages before it that the client has answers to
    bool is_asked_ = false;        // Python takes one more
    RespSession session_;
    std::shared_ptr<Subscriber> subscriber_;  // null: it never had a subscription
    std::shared_ptr<const Subscriptions> next_subscriptions_;  // from the next answer on; null: those that it has
};

}  // namespace door
