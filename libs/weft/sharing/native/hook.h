/* The hook: preloaded into a job, between the job and the driver. Without WEFT_SHARE it does nothing. */
#ifndef WEFT_HOOK_H
#define WEFT_HOOK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "protocol.h"

#define EXPORT __attribute__((visibility("default")))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#define US 1000ll
#define MS 1000000ll
#define SECOND 1000000000ll

/* resolve.c: the driver's own functions */
enum hooked {
#define X(id, symbol, name, since, variant) HOOKED_##id,
#include "calls.h"
#undef X
    HOOKED_COUNT
};
void *resolve_symbol(const char *symbol);          /* of the driver; NULL if there is none */
void *resolve_driver(enum hooked which);           /* the driver's own function; NULL if there is none */
void *resolve_ours(enum hooked which);             /* hook.c: ours */
void *resolve_substitute(const char *name, int version, bool per_thread, void *found); /* for cuGetProcAddress */

/* The driver's functions that the hook itself calls. */
struct driver {
    CUresult (*event_create)(CUevent *, unsigned);
    CUresult (*event_record)(CUevent, CUstream);
    CUresult (*event_query)(CUevent);
    CUresult (*event_elapsed)(float *, CUevent, CUevent);
    CUresult (*is_capturing)(CUstream, int *);
    CUresult (*exchange_mode)(int *);
    CUresult (*current)(CUcontext *);
    CUresult (*set_current)(CUcontext);
    CUresult (*device)(CUdevice *);
};
const struct driver *resolve_internal(void); /* NULL if the driver lacks one of them */

/* share.c: the job folder: its pages, this process's entry, the connection to the arbiter */
extern _Atomic(const volatile struct weft_limits *) share_limits_page;
extern _Atomic(struct weft_entry *) share_own_entry;
extern struct weft_use *_Atomic share_use_page;
extern pthread_mutex_t share_lock; /* turn, estimates and markers; recursive use is a mistake */

int64_t share_now(void);
bool share_wanted(void); /* WEFT_SHARE is set */
const volatile struct weft_limits *share_open(void);
struct weft_entry *share_entry(void); /* NULL: no job folder, or no free entry */
void share_serve(void);               /* start the thread that talks with the arbiter */
void share_wait(int64_t ns);          /* under the lock: until something changes, or so long */
bool share_send(uint32_t op, uint64_t turn, int64_t a, int64_t b); /* under the lock */
bool share_arbiter_beats(void);
enum share_connection { CONNECTING, CONNECTED, ALONE } share_connection(void); /* under the lock */
uint64_t share_heard(void);                                                  /* messages received */

static inline const volatile struct weft_limits *share_limits(void) {
    const volatile struct weft_limits *limits = atomic_load_explicit(&share_limits_page, memory_order_acquire);
    return limits ? limits : share_open();
}

/* gate.c: launches */
struct launch {
    bool gated;
    struct slot *slot;
    struct estimate *estimate;
    int64_t ns;
};
struct kernel {
    void *function; /* or a graph */
    unsigned grid[3], block[3];
};
void gate_enter(struct launch *launch, const struct kernel *kernel, CUstream stream, bool per_thread);
void gate_leave(struct launch *launch, CUresult status);
void gate_stream_ends(CUstream stream);
void gate_context_ends(CUcontext context);
void gate_granted(uint64_t turn, int64_t quota_us, int64_t bound_us); /* these four under the lock */
void gate_revoked(uint64_t turn);
void gate_disconnected(void);
int64_t gate_look(void); /* return an idle turn, report corrections; ns until the next look */
void gate_forked(void);

/* estimates.c: how long each kernel and each graph takes */
struct estimate {
    uint64_t key;
    float ns, before; /* before: the measurement before this one */
    uint32_t samples, uses, measured_at; /* measured_at: the use that was measured last, not beside others */
    bool hopeless; /* waited for in vain: not waited for again */
    uint16_t pending;
};
/* How a launch was measured: beside another process's work; after a pause; with the stream busy before it. */
enum measured { BESIDE, AFTER_PAUSE, CLEAN };
struct estimate *estimate_of(const struct kernel *kernel);
void estimate_learn(struct estimate *estimate, double ns, enum measured how);
bool estimate_wanting(const struct estimate *estimate); /* to be measured alone now */
void estimates_forget(void);

/* markers.c: events between launches, by which the hook knows what is in flight and how long it took */
struct slot;
struct slot *marker_slot(CUstream stream, CUcontext context);
void marker_before(struct slot *slot, const struct launch *launch, bool beside, int64_t target_ns);
void marker_after(struct slot *slot, const struct launch *launch, bool launched, int64_t target_ns);
void marker_close(struct slot *slot);
void markers_reap(void);
void markers_share(void);
bool markers_pending(void);
int64_t markers_in_flight(void);         /* ns, estimated */
int64_t markers_take_correction(void);   /* ns measured beyond the estimates since the last call */
int64_t markers_correction(void);
void markers_add_correction(int64_t ns);
int64_t markers_left(int64_t now);       /* what is left of it: the oldest segment has begun */
uint64_t markers_settled(void);          /* how many are complete: progress */
void markers_assume_done(void);          /* what is in flight without a marker, or waited for in vain */
void markers_stream_ends(CUstream stream);
void markers_context_ends(CUcontext context);
void markers_forget(void);

/* memory.c and sizes.c */
enum kind { MEMORY, ARRAY, HANDLE, MAPPING, OF_GRAPH };
struct size {
    uint64_t key;
    uint64_t bytes;   /* of a mapping: its handle */
    void *owner;      /* context or graph; NULL for a handle */
    int32_t references;
    uint8_t kind;
    uint8_t state;
};
bool size_put(enum kind kind, uint64_t key, uint64_t bytes, void *owner);
uint64_t size_drop(enum kind kind, uint64_t key);              /* a reference less: bytes that are free now */
bool size_keep(enum kind kind, uint64_t key);                  /* a reference more */
uint64_t size_drop_owner(void *owner);                         /* bytes of all that it owned */
uint64_t size_unmap(uint64_t from, uint64_t bytes);            /* mappings in that range: bytes that are free now */
uint64_t sizes_total(void);
void sizes_forget(void);
bool memory_take(uint64_t bytes);
void memory_add(uint64_t bytes); /* without asking: it is there already */
void memory_give(uint64_t bytes);
bool memory_capped(uint64_t *limit, uint64_t *used); /* false: not capped */

/* pools.c */
void pool_used(CUmemoryPool pool);
void pool_gone(CUmemoryPool pool);
void pool_freed(uint64_t bytes);
void pools_refresh(void);
bool pools_trim(void);
uint64_t pools_kept(void);
void pools_forget(void);

#endif
