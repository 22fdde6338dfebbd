// A resolver's columns are some megabytes for a large batch: fresh memory costs page faults, up to a fifth of the batch. So one
// of the process is kept for the next batch that looks first, unless it is large.
#pragma once
#include <atomic>
#include <memory>
#include <new>

#include "plan/native_resolve.hpp"

class KeptResolver {
  public:
    KeptResolver() = default;
    ~KeptResolver() {
        if (!resolver_ || resolver_->kept_bytes() > BYTES_MAX) return;
        resolver_.reset(kept().exchange(resolver_.release()));  // another thread's
    }
    KeptResolver(const KeptResolver&) = delete;
    KeptResolver& operator=(const KeptResolver&) = delete;

    // For as long as this one lives; nullptr: no memory.
    NativeResolver* take() {
        resolver_.reset(kept().exchange(nullptr));
        if (!resolver_) resolver_.reset(new (std::nothrow) NativeResolver);
        if (resolver_) resolver_->refuse(nullptr);
        return resolver_.get();
    }

  private:
    static constexpr u64 BYTES_MAX = 8 << 20;
    static std::atomic<NativeResolver*>& kept() {
        static std::atomic<NativeResolver*> resolver{nullptr};
        return resolver;
    }
    std::unique_ptr<NativeResolver> resolver_;
};
