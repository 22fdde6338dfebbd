// A call whose login the door does not know: Python says who makes it, and then the door serves it. Nothing of its messages
// is taken meanwhile: the client waits with all but a window.
#pragma once
#include "grpc/call.hpp"

namespace door {

class Forwarded;

// It frees itself when Python has answered, or the call has ended.
class Login final : public Handler, public Responder {
  public:
    // Asks Python. Where its connection may not hold that, the call has ended.
    static void open(Call& call);

    // What the call tells.
    void message(Message&&) override {}  // nobody asks for one
    void half_closed() override {}       // who serves the call hears it again
    void sent() override {}
    void stop_waiting() override {}  // Python answers in any case
    void over() override;

    // What Python says.
    Connection& responds_over() override;
    void ask() override {}
    void respond(Message&&) override {}
    void finish(const Status& status) override;

  private:
    explicit Login(Call& call) : call_(call) {}

    Call& call_;
    Forwarded* asked_ = nullptr;
};

}  // namespace door
