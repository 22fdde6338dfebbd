// What Python says of a connection that speaks as clients of Redis do.
#pragma once
#include "base/types.hpp"

namespace door {

struct RespSession {
    u32 table_id = 0;        // the default table; one that there is not: Python takes all commands on keys
    u32 protocol = 2;        // or 3: RESP2, RESP3
    bool hands_all = false;  // Python takes all commands
    bool is_silent = false;  // the door answers nothing; what Python answers is sent
};

}  // namespace door
