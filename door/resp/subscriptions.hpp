// To which channels and patterns a connection of RESP has subscribed. It never changes: others come in its place.
#pragma once
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/types.hpp"

namespace door {

// Whether a text is as a pattern of Redis says: `*`, `?`, `[a-c]`, `[^x]`, and `\` before a letter that means itself. To see
// that takes no longer than the length of the one times that of the other.
bool fits(std::string_view pattern, std::string_view text);

class Subscriptions {
  public:
    // RESP2 or RESP3; two messages (resp_message.hpp), the channels and the patterns. std::bad_alloc.
    Subscriptions(u32 protocol, const u8* words);

    // For whom a message of a channel is: the channel's own subscription, and each pattern that it fits.
    struct Found {
        bool by_channel = false;
        std::vector<const std::string*> by_patterns;
        u64 count() const { return by_channel + by_patterns.size(); }
    };
    void find(const std::string& channel, Found& found) const;

    bool are_none() const { return channels_.empty() && patterns_.empty(); }

    const u32 protocol;

  private:
    std::unordered_set<std::string> channels_;
    std::vector<std::string> patterns_;
};

}  // namespace door
