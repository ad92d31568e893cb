/* What the hook and the arbiter agree on: the two pages, the messages, the names. libs/weft/sharing has the same in Python;
 * a test compares the two. All numbers are little endian. */
#ifndef WEFT_PROTOCOL_H
#define WEFT_PROTOCOL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define WEFT_PAGE_BYTES 4096
#define WEFT_ENTRIES 63

#define WEFT_LIMITS_MAGIC 0x314d494c54464557ull /* "WEFTLIM1" */
#define WEFT_USE_MAGIC 0x3145535554464557ull    /* "WEFTUSE1" */
#define WEFT_VERSION 1

#define WEFT_FLAG_HOLD 1u   /* launch nothing */
#define WEFT_FLAG_GATED 2u  /* launch with a turn only */
#define WEFT_FLAG_CAPPED 4u /* refuse memory beyond memory_limit */
#define WEFT_FLAG_CLOSED 8u /* without an arbiter: stop launching; otherwise go on free */

/* Written by the arbiter alone; the hook maps it read-only. */
struct weft_limits {
    uint64_t magic;
    uint32_t version;
    uint32_t changes; /* grows by 1 after every write */
    uint32_t flags;
    uint32_t spare;
    uint64_t memory_limit;  /* bytes */
    uint64_t device_memory; /* bytes */
    uint32_t in_flight_us;
    uint32_t context_bytes_mib;
    uint64_t arbiter_beat; /* CLOCK_MONOTONIC, ns */
};

/* One process of the job. */
struct weft_entry {
    uint32_t pid; /* as the process sees itself; 0: free */
    uint32_t generation;
    uint64_t memory_used; /* bytes */
    uint64_t launches;
    uint64_t busy_us;
    uint64_t beat_ns;
    uint8_t spare[24];
};

/* Written by the processes of the job. */
struct weft_use {
    uint64_t magic;
    uint64_t launches;
    uint64_t blocked_ns;
    uint64_t busy_us; /* device time, measured where known */
    uint64_t denied;  /* allocations refused */
    uint64_t waits_given_up;
    uint64_t longest_kernel_us;
    uint64_t spare;
    struct weft_entry entries[WEFT_ENTRIES];
};

struct weft_message {
    uint32_t op;
    uint32_t pid;
    uint64_t turn;
    uint64_t a;
    uint64_t b;
};

/* hook to arbiter */
#define WEFT_HELLO 1u  /* a: index of the entry, b: its generation */
#define WEFT_WANT 2u   /* a: estimated µs of the launch that waits */
#define WEFT_RETURN 3u /* turn, a: µs of device time to charge, b: µs still in flight */
#define WEFT_CHARGE 4u /* a: µs to add to what was charged, signed */
/* arbiter to hook */
#define WEFT_GRANT 17u  /* turn, a: µs of device time, b: µs that may be in flight */
#define WEFT_REVOKE 18u /* turn: return it at once */

static_assert(sizeof(struct weft_entry) == 64, "an entry is 64 bytes");
static_assert(sizeof(struct weft_use) == WEFT_PAGE_BYTES, "the page of use is full");
static_assert(sizeof(struct weft_message) == 32, "a message is 32 bytes");
static_assert(offsetof(struct weft_limits, arbiter_beat) == 48, "the arbiter's beat is at 48");
static_assert(offsetof(struct weft_use, entries) == 64, "the entries begin at 64");

#endif
