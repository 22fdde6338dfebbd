// The numbers of the protocol, once: kernels and door make their names of these lists, and a test compares those of Python
// (gpkvs/batch.py, which a client has without this library).
#pragma once

// Of each operation: its number, whether it brings a value, returns one, and changes nothing. No client may send those from
// LENGTH on. Planners know the first four; the others become one of these (resolve.hpp).
#define PROTOCOL_OPERATIONS(F)                   \
    F(GET, 1, false, true, true)                 \
    F(SET, 2, true, false, false)                \
    F(DELETE, 3, false, false, false)            \
    F(EXISTS, 4, false, false, true)             \
    F(INCREMENT, 5, true, true, false)           \
    F(APPEND, 6, true, false, false)             \
    F(CHECK, 7, false, false, true)              \
    F(EXPIRE, 8, false, false, false)            \
    F(EXPIRY, 9, false, true, true)              \
    F(ADD, 10, true, false, false)               \
    F(LENGTH, 11, false, true, true)             \
    F(REQUIRE, 12, true, false, true)            \
    F(COPY, 13, false, false, false)             \
    F(SETRANGE, 14, true, false, false)          \
    F(INCREMENT_DECIMAL, 15, true, false, false)

// Terms of "false || ...", of the operation `op`.
#define BRINGS_VALUE(name, number, brings, returns, reads) || (brings && op == number)
#define RETURNS_VALUE(name, number, brings, returns, reads) || (returns && op == number)
#define ONLY_READS(name, number, brings, returns, reads) || (reads && op == number)

// What an operation asks of its key before it does anything. Only the door asks for those from SOUND on: the record that the
// table has for the key, if it has one, must not be damaged. What replaces a record that nobody could read would hide the damage.
#define PROTOCOL_CONDITIONS(F)                                                                         \
    F(NONE, 0)                                                                                             \
    F(ABSENT, 1)                                                                                           \
    F(PRESENT, 2)                                                                                          \
    F(EQUALS, 3)                                                                                           \
    F(SOUND, 4)                                                                                            \
    F(EXPIRES, 5)    /* the key is there, and has an expiry */                                             \
    F(READABLE, 6)   /* it is there */                                                                     \
    F(LASTS, 7)      /* it is there, and has no expiry */                                                  \
    F(LATER, 8)      /* it has an expiry, and would expire later than that */                              \
    F(SOONER, 9)     /* the other way round: what has no expiry comes last */                              \
    F(HOLDS, 10)     /* of a REQUIRE: it holds the value that this brings */                               \
    F(REQUIRED, 11)  /* the last REQUIREs in a row before it hold, and all behind them was done */         \
    F(KEEPS, 12)     /* none: a SET leaves the expiry that there is */                                     \
    F(PROLONGS, 13)  /* as REQUIRED; an EXPIRE adds to the expiry that there is what `expected` says */

// What became of an operation.
#define PROTOCOL_STATUSES(F) \
    F(OK, 0)               \
    F(NOT_FOUND, 1)        \
    F(CORRUPT, 2)          \
    F(CONDITION_FAILED, 3) \
    F(OVERFLOW, 4)         \
    F(NOT_A_NUMBER, 5)

// Their counts, the highest number and one: the door counts by both.
#define OPERATION_NUMBERS 16
#define STATUS_NUMBERS 6
