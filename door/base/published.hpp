// A value that one thread replaces whole and others read: they see it as it was or as it is. Null until there is one.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "base/types.hpp"

namespace door {

template <class Value>
class Published {
  public:
    void publish(std::shared_ptr<const Value> value) {
        std::lock_guard<std::mutex> guard(mutex_);
        value_.swap(value);
        version_.fetch_add(1, std::memory_order_release);
    }

    std::shared_ptr<const Value> value() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return value_;
    }

  private:
    template <class> friend class Reader;

    mutable std::mutex mutex_;
    std::shared_ptr<const Value> value_;
    std::atomic<u64> version_{1};
};

// What one thread sees of it: locks only when there is a new value.
template <class Value>
class Reader {
  public:
    explicit Reader(const Published<Value>& published) : published_(published) {}

    // As of now; the reference holds until the next call.
    const std::shared_ptr<const Value>& now() {
        if (published_.version_.load(std::memory_order_acquire) != version_) {
            std::lock_guard<std::mutex> guard(published_.mutex_);
            version_ = published_.version_.load(std::memory_order_relaxed);
            value_ = published_.value_;
        }
        return value_;
    }

  private:
    const Published<Value>& published_;
    std::shared_ptr<const Value> value_;
    u64 version_ = 0;
};

}  // namespace door
