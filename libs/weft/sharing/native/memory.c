/* The cap of memory: all processes of the job together, each with its context, stay below the limit.
 *
 * A process adds to its own entry first, then sums all entries, and takes back if the sum is over the limit. No lock:
 * nothing is left locked by a process that is killed, and two processes cannot both take the last bytes. */
#include "hook.h"

#include <errno.h>
#include <signal.h>

#define BYTES_MAX (1ull << 60) /* other processes write their entries: no sum of them overflows */

static uint64_t bounded(uint64_t bytes) { return bytes < BYTES_MAX / 64 ? bytes : BYTES_MAX / 64; }

static uint64_t used(const volatile struct weft_limits *limits, struct weft_use *use) {
    uint64_t sum = 0, context = (uint64_t)limits->context_bytes_mib << 20;
    for (int at = 0; at < WEFT_ENTRIES; at++)
        if (__atomic_load_n(&use->entries[at].pid, __ATOMIC_RELAXED))
            sum += bounded(__atomic_load_n(&use->entries[at].memory_used, __ATOMIC_SEQ_CST)) + bounded(context);
    return sum;
}

/* The arbiter clears the entries of the dead; without an arbiter the living do, who see the same process ids. */
static void bury_dead(struct weft_use *use) {
    for (int at = 0; at < WEFT_ENTRIES; at++) {
        struct weft_entry *entry = &use->entries[at];
        uint32_t pid = __atomic_load_n(&entry->pid, __ATOMIC_ACQUIRE);
        if (!pid || (pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno != ESRCH)))
            continue;
        uint32_t generation = entry->generation;
        __atomic_store_n(&entry->memory_used, 0, __ATOMIC_SEQ_CST);
        if (entry->generation == generation)
            __atomic_compare_exchange_n(&entry->pid, &pid, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

bool memory_take(uint64_t bytes) {
    const volatile struct weft_limits *limits = share_limits();
    struct weft_use *use = share_use_page;
    if (!limits || !use)
        return true;
    struct weft_entry *entry = share_entry();
    bool capped = limits->flags & WEFT_FLAG_CAPPED;
    pools_refresh();
    if (!entry)
        bytes = capped ? BYTES_MAX : 0; /* more processes than entries: none of them is counted twice, or not at all */
    for (int tries = 0; tries < 3; tries++) {
        if (bytes <= BYTES_MAX / 64 && entry) {
            __atomic_fetch_add(&entry->memory_used, bytes, __ATOMIC_SEQ_CST);
            if (!capped || used(limits, use) <= limits->memory_limit)
                return true;
            __atomic_fetch_sub(&entry->memory_used, bytes, __ATOMIC_SEQ_CST);
            if (tries == 0)
                bury_dead(use);
            else if (!pools_trim())
                break;
        }
    }
    if (!capped)
        return true;
    __atomic_fetch_add(&use->denied, 1, __ATOMIC_RELAXED);
    return false;
}

void memory_add(uint64_t bytes) {
    struct weft_entry *entry = atomic_load(&share_own_entry);
    if (entry)
        __atomic_fetch_add(&entry->memory_used, bytes, __ATOMIC_SEQ_CST);
}

/* Never below zero: the arbiter may have cleared the entry. */
void memory_give(uint64_t bytes) {
    struct weft_entry *entry = atomic_load(&share_own_entry);
    if (!entry || !bytes)
        return;
    uint64_t before = __atomic_load_n(&entry->memory_used, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(&entry->memory_used, &before, before > bytes ? before - bytes : 0, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
}

bool memory_capped(uint64_t *limit, uint64_t *in_use) {
    const volatile struct weft_limits *limits = share_limits();
    struct weft_use *use = share_use_page;
    if (!limits || !use || !(limits->flags & WEFT_FLAG_CAPPED))
        return false;
    share_entry(); /* so that this process's context is in the sum */
    pools_refresh();
    *limit = limits->memory_limit;
    *in_use = used(limits, use);
    return true;
}
