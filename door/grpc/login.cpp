#include "grpc/login.hpp"

#include "door.hpp"
#include "python/forward.hpp"
#include "grpc/http2.hpp"
#include "base/texts.hpp"

namespace door {

void Login::open(Call& call) {
    std::unique_ptr<Login> login(new Login(call));
    login->asked_ = call.connection.thread.door.forward.ask_for_login(call, *login);
    if (login->asked_) call.set_handler(login.release());
    else call.refuse({RESOURCE_EXHAUSTED, memory_text(call.account(), call.metadata.size()), MEMORY_FULL});
}

void Login::over() {
    asked_->over();
    delete this;
}

Connection& Login::responds_over() { return call_.connection; }

// Whom Python lets in and the door does not know all the same, or no longer, is Python's: it decides again.
void Login::finish(const Status& status) {
    const std::unique_ptr<Login> self(this);
    call_.set_handler(nullptr);
    if (status.code != OK) call_.finish(status);
    else if (call_.caller && !call_.caller->is_gone) call_.connection.serve(call_);
    else call_.forward();
}

}  // namespace door
