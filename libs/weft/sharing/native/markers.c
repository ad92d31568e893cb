/* Markers: events that the hook records between launches of a stream.
 *
 * The work between two markers of a stream is a segment. When its second marker is complete, the segment is no longer
 * in flight, and the time between the two is the device time it took, if the stream was busy all the time: so a segment
 * begins at the stream's last marker while that is not complete, and at a new one otherwise. Segments that may have run
 * beside another process's work, or after a pause, are not clean: charged no more than their estimate. Segments that
 * run at the same time are charged once: each only for the time after the end of the last one. All under share_lock. */
#include "hook.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS 64
#define MARKERS 512
#define SEGMENT_LAUNCHES 256
#define MEASURE_EVERY 64 /* launches of a known kernel between two measurements of it alone */
#define TOLERANCE 1.25 /* a segment that took longer than this times its estimate had gaps, or company */

struct marker {
    CUevent event;
    CUcontext context;
    int references;
    bool complete, broken;
    struct marker *start; /* of the segment that this marker ends */
    struct estimate *only; /* the segment is launches of this kernel alone */
    int64_t ns;            /* estimate of the segment */
    unsigned count;
    enum measured how;
};

/* A stream as the hook sees it; the per-thread default stream is one for each thread. */
struct slot {
    CUstream stream;
    CUcontext context;
    long thread;
    uint64_t used;
    struct marker *last, *start;
    struct estimate *only;
    int64_t ns;
    unsigned count;
    bool open, alone;
    enum measured how;
};

static struct slot slots[SLOTS], *recent;
static struct marker markers[MARKERS], *waiting[MARKERS], *reference;
static int waiting_count;
static uint64_t uses, settled;
static int64_t in_flight, correction, moved_at; /* moved_at: when a marker was last seen complete, or the first set */

static void put(struct marker *marker) {
    while (marker && --marker->references == 0) {
        struct marker *start = marker->start;
        marker->start = NULL;
        marker->complete = false;
        marker->broken = marker->broken && marker->event;
        marker = start;
    }
}

static struct marker *keep(struct marker *marker) {
    if (marker)
        marker->references++;
    return marker;
}

/* A marker recorded in the stream now, kept once; NULL if that is not possible. */
static struct marker *record(struct slot *slot) {
    const struct driver *driver = resolve_internal();
    struct marker *found = NULL;
    for (int at = 0; at < MARKERS && !found; at++)
        if (!markers[at].references && !markers[at].broken && (!markers[at].event || markers[at].context == slot->context))
            found = &markers[at];
    if (!found)
        return NULL;
    if (!found->event) {
        if (driver->event_create(&found->event, 0) != CUDA_SUCCESS) {
            found->event = NULL;
            return NULL;
        }
        found->context = slot->context;
    }
    if (driver->event_record(found->event, slot->stream) != CUDA_SUCCESS) {
        found->event = NULL; /* its context is gone, say; the event is left behind */
        return NULL;
    }
    found->references = 1;
    found->complete = false;
    found->start = NULL;
    return found;
}

static long this_thread(CUstream stream) {
    static __thread long thread __attribute__((tls_model("initial-exec"))); /* musl loads no ld-linux for another */
    if (stream != CU_STREAM_PER_THREAD)
        return 0;
    if (!thread)
        thread = syscall(SYS_gettid);
    return thread;
}

static void empty(struct slot *slot) {
    if (slot->open)
        in_flight -= slot->ns; /* charged as estimated */
    put(slot->last);
    put(slot->start);
    *slot = (struct slot){0};
}

struct slot *marker_slot(CUstream stream, CUcontext context) {
    long thread = this_thread(stream);
    if (recent && recent->used && recent->stream == stream && recent->context == context && recent->thread == thread)
        return recent;
    struct slot *oldest = &slots[0];
    for (int at = 0; at < SLOTS; at++) {
        struct slot *slot = &slots[at];
        if (slot->used && slot->stream == stream && slot->context == context && slot->thread == thread) {
            slot->used = ++uses;
            return recent = slot;
        }
        if (slot->used < oldest->used)
            oldest = slot;
    }
    empty(oldest);
    *oldest = (struct slot){.stream = stream, .context = context, .thread = thread, .used = ++uses};
    return recent = oldest;
}

static bool is_complete(struct marker *marker) {
    if (marker->broken)
        marker->complete = true;
    if (!marker->complete) {
        CUresult status = resolve_internal()->event_query(marker->event);
        marker->broken = marker->broken || (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY);
        marker->complete = status != CUDA_ERROR_NOT_READY;
    }
    return marker->complete;
}

/* The segment that this marker ends is complete. */
static void settle(struct marker *marker) {
    const struct driver *driver = resolve_internal();
    float took, since;
    in_flight -= marker->ns;
    settled++;
    if (marker->only)
        marker->only->pending -= marker->only->pending > 0;
    bool measured = !marker->broken && marker->start && is_complete(marker->start) && !marker->start->broken &&
                    driver->event_elapsed(&took, marker->start->event, marker->event) == CUDA_SUCCESS;
    double busy = (double)marker->ns;
    if (measured) {
        double alone = (double)took * 1e6;
        busy = alone;
        if (reference && reference->context == marker->context &&
            driver->event_elapsed(&since, reference->event, marker->event) == CUDA_SUCCESS && (double)since * 1e6 < busy)
            busy = since > 0 ? (double)since * 1e6 : 0;
        bool first = marker->only && !marker->only->samples;
        if (marker->only && marker->count == 1)
            estimate_learn(marker->only, alone, marker->how);
        double most = marker->how == CLEAN && marker->count > 1 ? TOLERANCE * (double)marker->ns : (double)marker->ns;
        if (!first && (marker->how != CLEAN || marker->count > 1) && busy > most)
            busy = most;
        if (marker->only && marker->count == 1 && marker->how != BESIDE && share_use_page) {
            float twice = (float)alone < marker->only->before ? (float)alone : marker->only->before;
            marker->only->before = (float)alone; /* one long measurement may be another's fault, two are its own */
            uint64_t longest = (uint64_t)(twice / 1000), *told = &share_use_page->longest_kernel_us;
            if (longest > __atomic_load_n(told, __ATOMIC_RELAXED))
                __atomic_store_n(told, longest, __ATOMIC_RELAXED);
        }
        put(reference);
        reference = keep(marker);
    }
    correction += (int64_t)busy - marker->ns;
    struct weft_entry *entry = atomic_load(&share_own_entry);
    static double rest; /* below a µs */
    rest += busy / 1000;
    uint64_t whole = (uint64_t)rest;
    rest -= (double)whole;
    if (entry) {
        __atomic_fetch_add(&entry->busy_us, whole, __ATOMIC_RELAXED);
        __atomic_fetch_add(&share_use_page->busy_us, whole, __ATOMIC_RELAXED);
    }
    put(marker->start); /* a chain of starts must not grow with time */
    marker->start = NULL;
}

void markers_reap(void) {
    int left = 0;
    for (int at = 0; at < waiting_count; at++) {
        struct marker *marker = waiting[at];
        if (is_complete(marker)) {
            settle(marker);
            put(marker);
        } else
            waiting[left++] = marker;
    }
    if (left < waiting_count)
        moved_at = share_now();
    waiting_count = left;
}

int64_t markers_left(int64_t now) {
    int64_t begun = waiting_count ? now - moved_at : 0;
    if (waiting_count && begun > waiting[0]->ns)
        begun = waiting[0]->ns;
    return in_flight > begun ? in_flight - begun : 0;
}

void marker_close(struct slot *slot) {
    if (!slot->open)
        return;
    struct marker *marker = waiting_count < MARKERS ? record(slot) : NULL;
    slot->open = false;
    if (!marker) { /* never seen again: charged as estimated */
        in_flight -= slot->ns;
        put(slot->start);
        slot->start = NULL;
        return;
    }
    marker->start = slot->start; /* the slot's reference becomes the marker's */
    slot->start = NULL;
    marker->ns = slot->ns;
    marker->count = slot->count;
    marker->how = slot->how;
    marker->only = slot->only;
    if (marker->only)
        marker->only->pending++;
    if (!waiting_count)
        moved_at = share_now();
    waiting[waiting_count++] = marker;
    put(slot->last);
    slot->last = keep(marker);
}

/* Just before the launch: it goes into the stream's open segment, or a new one begins. */
void marker_before(struct slot *slot, const struct launch *launch, bool beside, int64_t target_ns) {
    struct estimate *estimate = launch->estimate;
    bool alone = ++estimate->uses % MEASURE_EVERY == 0 || estimate_wanting(estimate) || launch->ns >= target_ns;
    if (slot->open && (alone || slot->alone || slot->count >= SEGMENT_LAUNCHES))
        marker_close(slot);
    if (!slot->open) {
        bool busy = slot->last && !is_complete(slot->last);
        slot->start = busy ? keep(slot->last) : record(slot);
        slot->only = estimate;
        slot->ns = 0;
        slot->count = 0;
        slot->how = beside ? BESIDE : busy ? CLEAN : AFTER_PAUSE;
        slot->open = true;
    }
    slot->alone = alone;
    slot->only = slot->only == estimate ? estimate : NULL;
    slot->ns += launch->ns;
    slot->count++;
    in_flight += launch->ns;
}

void marker_after(struct slot *slot, const struct launch *launch, bool launched, int64_t target_ns) {
    if (!launched && slot->open) {
        slot->ns -= launch->ns;
        in_flight -= launch->ns;
        correction -= launch->ns;
    }
    if (slot->open && (slot->alone || slot->ns >= target_ns))
        marker_close(slot);
}

/* What is in flight now runs beside the next holder's work: it can be measured too long. */
void markers_share(void) {
    markers_reap();
    for (int at = 0; at < waiting_count; at++)
        waiting[at]->how = BESIDE;
    for (int at = 0; at < SLOTS; at++)
        slots[at].how = BESIDE;
}

bool markers_pending(void) { return waiting_count > 0; }
int64_t markers_in_flight(void) { return in_flight > 0 ? in_flight : 0; }
int64_t markers_correction(void) { return correction; }
void markers_add_correction(int64_t ns) { correction += ns; }
uint64_t markers_settled(void) { return settled; }

int64_t markers_take_correction(void) {
    int64_t taken = correction;
    correction = 0;
    return taken;
}

void markers_assume_done(void) {
    for (int at = 0; at < waiting_count; at++) {
        if (waiting[at]->only) {
            waiting[at]->only->hopeless = true;
            waiting[at]->only->pending -= waiting[at]->only->pending > 0;
        }
        put(waiting[at]);
    }
    waiting_count = 0;
    for (int at = 0; at < SLOTS; at++) {
        slots[at].open = false;
        put(slots[at].start);
        slots[at].start = NULL;
    }
    in_flight = 0;
}

void markers_stream_ends(CUstream stream) {
    for (int at = 0; at < SLOTS; at++)
        if (slots[at].used && slots[at].stream == stream)
            empty(&slots[at]);
    recent = NULL;
}

/* Its events go with it. */
void markers_context_ends(CUcontext context) {
    int left = 0;
    for (int at = 0; at < SLOTS; at++)
        if (slots[at].used && slots[at].context == context)
            empty(&slots[at]);
    for (int at = 0; at < waiting_count; at++) {
        struct marker *marker = waiting[at];
        if (marker->context != context) {
            waiting[left++] = marker;
            continue;
        }
        in_flight -= marker->ns;
        if (marker->only)
            marker->only->pending -= marker->only->pending > 0;
        put(marker);
    }
    waiting_count = left;
    if (reference && reference->context == context) {
        put(reference);
        reference = NULL;
    }
    for (int at = 0; at < MARKERS; at++)
        if (markers[at].event && markers[at].context == context) {
            markers[at].broken = markers[at].references > 0;
            markers[at].event = NULL;
        }
    recent = NULL;
}

void markers_forget(void) {
    memset(slots, 0, sizeof slots);
    memset(markers, 0, sizeof markers);
    recent = NULL;
    reference = NULL;
    waiting_count = 0;
    in_flight = correction = 0;
}
