#include "net/mailbox.hpp"

#include <cerrno>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace door {

namespace {

int new_eventfd() {
    const int file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (file < 0) throw std::system_error(errno, std::generic_category());
    return file;
}

}  // namespace

Mailbox::Mailbox(std::function<void(Request*)> on_answered) : on_answered_(std::move(on_answered)), file_(new_eventfd()) {}

Mailbox::~Mailbox() { close(file_); }

void Mailbox::post(std::function<void()> mail) {
    std::lock_guard<std::mutex> guard(mutex_);
    const bool was_empty = is_empty();
    mail_.push_back(std::move(mail));
    if (was_empty) wake();
}

void Mailbox::post(Request* first, Request* last) {
    std::lock_guard<std::mutex> guard(mutex_);
    const bool was_empty = is_empty();
    (first_ ? last_->next : first_) = first;
    last_ = last;
    if (was_empty) wake();
}

void Mailbox::post(Errand& errand) {
    std::lock_guard<std::mutex> guard(mutex_);
    const bool was_empty = is_empty();
    errand.next = errands_;
    errands_ = &errand;
    if (was_empty) wake();
}

void Mailbox::ready(u32) {
    std::vector<std::function<void()>> mail;
    Request* request;
    Errand* errand;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        mail.swap(mail_);
        request = first_;
        first_ = last_ = nullptr;
        errand = std::exchange(errands_, nullptr);
    }
    while (request) {
        Request* const next = request->next;
        on_answered_(request);
        request = next;
    }
    for (const std::function<void()>& piece : mail) piece();
    while (errand) std::exchange(errand, errand->next)->run();
}

void Mailbox::wake() {
    const u64 one = 1;
    (void)!write(file_, &one, sizeof one);
}

}  // namespace door
