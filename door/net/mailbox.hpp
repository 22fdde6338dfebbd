// What other threads send to a thread: requests that come back, and work. It wakes the thread once, however much comes.
#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "request/request.hpp"
#include "base/watched.hpp"

namespace door {

// Work whose sender waits until it is done.
struct Errand {
    virtual void run() = 0;
    Errand* next = nullptr;

  protected:
    ~Errand() = default;
};

class Mailbox : public Watched {
  public:
    // std::system_error where the system gives no more files.
    explicit Mailbox(std::function<void(Request*)> on_answered);
    ~Mailbox();

    // To be watched for edges: nobody reads it, each wake-up is one.
    int file() const { return file_; }

    // Any thread. std::bad_alloc where there is no memory.
    void post(std::function<void()> mail);
    // These need no memory: a list of requests, and an errand, which stays the sender's. It comes after mail that was posted
    // before.
    void post(Request* first, Request* last);
    void post(Errand& errand);

    // Its thread: does what came.
    void ready(u32 events) override;

  private:
    bool is_empty() const { return !first_ && mail_.empty() && !errands_; }
    void wake();

    const std::function<void(Request*)> on_answered_;
    const int file_;
    std::mutex mutex_;
    std::vector<std::function<void()>> mail_;
    Request* first_ = nullptr;
    Request* last_ = nullptr;
    Errand* errands_ = nullptr;  // a list
};

}  // namespace door
