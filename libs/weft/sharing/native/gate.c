/* The gate: a launch waits here until this process may launch.
 *
 * With the turn, the process launches until the work it launched reaches the quota; so much of it at most is in flight,
 * in estimated µs, that the next holder's launches arrive while the last of it drains. Streams under capture are not
 * gated (a capture runs nothing), nor is a process that uses more than one GPU (holding the turn of one GPU while
 * waiting for that of another could deadlock). Every wait has a bound. */
#include "hook.h"

#define SILENT_NS (2 * SECOND)     /* an arbiter that neither answers nor beats for so long is not there */
#define PATIENCE_NS (30 * SECOND)  /* longest wait for an arbiter that beats and does not answer */
#define ASK_AGAIN_NS (1 * SECOND)  /* a WANT may be lost with an arbiter */
#define STUCK_NS (1 * SECOND)      /* work in flight that does not move for so long is waited for no longer */
#define IDLE_NS (1 * MS)
#define LEAD_NS (200 * US) /* what is in flight may always be so much: long kernels follow one another without a gap */
#define BOUND_NS (4 * MS)
#define TARGET_MIN_NS (100 * US)
#define TARGET_MAX_NS (2 * MS)
#define CORRECTION_NS (200 * US)
#define NAP_MIN_NS (30 * US)
#define NAP_MAX_NS (1 * MS)
#define CONTEXTS 16

static struct {
    bool held, beside; /* beside: another process's work may still be in flight */
    uint64_t id;
    int64_t quota, bound, spent, granted_at; /* ns */
} turn;

static int waiting, launching;
static uint64_t launches, launches_seen;
static int64_t asked_at, idle_since;
static bool several_gpus, given_up;
static uint64_t heard_when_given_up;

static struct {
    CUcontext context;
    CUdevice device;
} contexts[CONTEXTS];
static int context_count;

/* The one device of this process, or none once there are two. */
static bool uses_one_gpu(CUcontext context) {
    CUdevice device;
    for (int at = 0; at < context_count; at++)
        if (contexts[at].context == context)
            return !several_gpus;
    if (context_count == CONTEXTS || resolve_internal()->device(&device) != CUDA_SUCCESS)
        return !several_gpus;
    for (int at = 0; at < context_count; at++)
        several_gpus = several_gpus || contexts[at].device != device;
    contexts[context_count].context = context;
    contexts[context_count++].device = device;
    return !several_gpus;
}

static int64_t target(void) {
    int64_t wanted = turn.bound / 4;
    return wanted < TARGET_MIN_NS ? TARGET_MIN_NS : wanted > TARGET_MAX_NS ? TARGET_MAX_NS : wanted;
}

static void want_turn(int64_t ns, int64_t now) {
    if (asked_at && now - asked_at < ASK_AGAIN_NS)
        return;
    asked_at = now;
    share_send(WEFT_WANT, 0, ns / US, 0);
}

/* With the estimate of the launch that waits, or -1: WANT goes first, so that the arbiter chooses with both known. */
static void return_turn(int64_t wanted_ns) {
    markers_share();
    int64_t spent = turn.spent + markers_take_correction();
    turn.held = false;
    asked_at = 0;
    if (wanted_ns >= 0)
        want_turn(wanted_ns, share_now());
    if (spent < 0) {
        markers_add_correction(spent);
        spent = 0;
    }
    share_send(WEFT_RETURN, turn.id, (spent + US / 2) / US, markers_in_flight() / US);
}

static void give_up(void) {
    if (share_use_page)
        __atomic_fetch_add(&share_use_page->waits_given_up, 1, __ATOMIC_RELAXED);
}

/* True if there is no arbiter to wait for. */
static bool alone(int64_t waited) {
    if (share_connection() == ALONE)
        return true;
    if (given_up && share_heard() == heard_when_given_up && !share_arbiter_beats())
        return true;
    given_up = false;
    if (waited < SILENT_NS || share_arbiter_beats())
        return false;
    give_up();
    given_up = true;
    heard_when_given_up = share_heard();
    return true;
}

/* Wait a little for what is in flight, without the lock; true if that is hopeless. */
static bool wait_for_markers(int64_t nap, int64_t now, int64_t *stuck_since, uint64_t *progress) {
    if (markers_settled() != *progress || !*stuck_since) {
        *progress = markers_settled();
        *stuck_since = now;
    }
    if (now - *stuck_since > STUCK_NS) {
        markers_assume_done();
        give_up();
        return true;
    }
    share_wait(nap < NAP_MIN_NS ? NAP_MIN_NS : nap > NAP_MAX_NS ? NAP_MAX_NS : nap);
    return false;
}

enum verdict { GO, GO_FREE, AGAIN };

/* One look, under the lock; AGAIN after a bounded wait. */
static enum verdict look(const volatile struct weft_limits *limits, struct launch *launch, struct slot *slot,
                         int64_t began, int64_t *stuck_since, uint64_t *progress) {
    uint32_t flags = limits->flags;
    bool closed = flags & WEFT_FLAG_CLOSED;
    int64_t now = 0;
    if (UNLIKELY((flags & WEFT_FLAG_HOLD) && !several_gpus)) {
        if (turn.held)
            return_turn(-1);
        if (!closed && !share_arbiter_beats() && share_connection() != CONNECTED)
            return GO_FREE;
        now = share_now();
        share_wait(now - began < 100 * MS ? 1 * MS : 5 * MS);
        return AGAIN;
    }
    if (!(flags & WEFT_FLAG_GATED) || several_gpus)
        return GO_FREE;
    if (UNLIKELY(!turn.held)) {
        now = share_now();
        if (alone(now - began)) {
            if (!closed)
                return GO_FREE;
            share_wait(20 * MS);
            return AGAIN;
        }
        if (now - began > PATIENCE_NS && !closed) {
            give_up();
            return GO_FREE;
        }
        if (share_connection() == CONNECTED)
            want_turn(launch->ns, now);
        share_wait(50 * MS);
        return AGAIN;
    }
    struct estimate *estimate = launch->estimate;
    if (UNLIKELY(estimate_wanting(estimate)) && estimate->pending) {
        markers_reap();
        launch->ns = (int64_t)estimate->ns;
    }
    if (UNLIKELY(estimate_wanting(estimate))) {
        now = share_now();
        if (turn.beside && now - turn.granted_at < turn.bound) { /* until the former holder's work is over */
            share_wait(turn.granted_at + turn.bound - now);
            return AGAIN;
        }
        turn.beside = false;
        if (estimate->pending) {
            if (!markers_pending() || wait_for_markers(markers_left(now), now, stuck_since, progress))
                estimate->pending = 0;
            return AGAIN;
        }
    }
    if (turn.spent > 0 && turn.spent + markers_correction() + launch->ns > turn.quota) {
        markers_reap();
        if (turn.spent + markers_correction() + launch->ns > turn.quota) {
            marker_close(slot);
            return_turn(launch->ns);
            return AGAIN;
        }
    }
    if (UNLIKELY(markers_in_flight() + launch->ns > turn.bound && markers_in_flight() > 0)) {
        markers_reap();
        launch->ns = (int64_t)estimate->ns;
        now = share_now();
        int64_t most = turn.bound - launch->ns > LEAD_NS ? turn.bound - launch->ns : LEAD_NS;
        if (markers_left(now) <= most)
            return GO;
        marker_close(slot);
        if (!markers_pending()) { /* work of streams in which this thread cannot set a marker */
            markers_assume_done();
            return GO;
        }
        return wait_for_markers(markers_left(now) - most, now, stuck_since, progress) ? GO : AGAIN;
    }
    return GO;
}

void gate_enter(struct launch *launch, const struct kernel *kernel, CUstream stream, bool per_thread) {
    launch->gated = false;
    const volatile struct weft_limits *limits = share_limits();
    if (!limits)
        return;
    struct weft_entry *entry = atomic_load_explicit(&share_own_entry, memory_order_relaxed);
    if (UNLIKELY(!entry))
        entry = share_entry();
    if (entry) {
        __atomic_fetch_add(&entry->launches, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&share_use_page->launches, 1, __ATOMIC_RELAXED);
    }
    if (!(limits->flags & (WEFT_FLAG_GATED | WEFT_FLAG_HOLD)))
        return;
    const struct driver *driver = resolve_internal();
    CUcontext context = NULL;
    int capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!driver || driver->current(&context) != CUDA_SUCCESS || !context)
        return;
    if (per_thread && !stream)
        stream = CU_STREAM_PER_THREAD;
    if (driver->is_capturing(stream, &capture) != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return;
    share_serve();
    pthread_mutex_lock(&share_lock);
    if (uses_one_gpu(context)) {
        int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* another thread may be capturing */
        driver->exchange_mode(&mode);
        struct slot *slot = marker_slot(stream, context);
        launch->estimate = estimate_of(kernel);
        launch->ns = (int64_t)launch->estimate->ns;
        int64_t began = 0, stuck_since = 0;
        uint64_t progress = 0;
        enum verdict verdict = turn.held ? look(limits, launch, slot, 0, &stuck_since, &progress) : AGAIN;
        if (UNLIKELY(verdict == AGAIN)) {
            int cancel;
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* a thread ended here would keep the lock */
            began = share_now();
            waiting++;
            while ((verdict = look(limits, launch, slot, began, &stuck_since, &progress)) == AGAIN) {
                limits = share_limits();
                slot = marker_slot(stream, context); /* another thread may have needed the place */
            }
            waiting--;
            pthread_setcancelstate(cancel, NULL);
            if (share_use_page)
                __atomic_fetch_add(&share_use_page->blocked_ns, (uint64_t)(share_now() - began), __ATOMIC_RELAXED);
        }
        if (verdict == GO) {
            turn.beside = turn.beside && turn.spent <= turn.bound; /* beyond it the former holder's work is over */
            marker_before(slot, launch, turn.beside, target());
            turn.spent += launch->ns > US ? launch->ns : US / 10;
            launch->slot = slot;
            launch->gated = true;
            launching++;
            launches++;
        }
        driver->exchange_mode(&mode);
    } else if (turn.held)
        return_turn(-1);
    pthread_mutex_unlock(&share_lock);
}

void gate_leave(struct launch *launch, CUresult status) {
    if (!launch->gated)
        return;
    const struct driver *driver = resolve_internal();
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_mutex_lock(&share_lock);
    launching -= launching > 0;
    driver->exchange_mode(&mode);
    marker_after(launch->slot, launch, status == CUDA_SUCCESS, target());
    driver->exchange_mode(&mode);
    pthread_mutex_unlock(&share_lock);
}

void gate_stream_ends(CUstream stream) {
    if (!atomic_load(&share_limits_page))
        return;
    pthread_mutex_lock(&share_lock);
    markers_stream_ends(stream);
    pthread_mutex_unlock(&share_lock);
}

void gate_context_ends(CUcontext context) {
    if (!atomic_load(&share_limits_page) || !context)
        return;
    pthread_mutex_lock(&share_lock);
    markers_context_ends(context);
    for (int at = 0; at < context_count; at++)
        if (contexts[at].context == context)
            contexts[at--] = contexts[--context_count];
    pthread_mutex_unlock(&share_lock);
}

void gate_granted(uint64_t id, int64_t quota_us, int64_t bound_us) {
    const volatile struct weft_limits *limits = share_limits();
    int64_t bound = bound_us ? bound_us : limits ? limits->in_flight_us : 0;
    turn.beside = id != turn.id + 1; /* the turn before this one was another process's */
    turn.held = true;
    turn.id = id;
    turn.quota = quota_us * US;
    turn.bound = bound ? bound * US : BOUND_NS;
    turn.spent = 0;
    turn.granted_at = idle_since = share_now();
    launches_seen = launches;
    asked_at = 0;
}

void gate_revoked(uint64_t id) {
    if (turn.held && turn.id == id)
        return_turn(waiting ? 0 : -1);
    else
        share_send(WEFT_RETURN, id, 0, markers_in_flight() / US); /* the first one was lost */
}

void gate_disconnected(void) {
    turn.held = false;
    asked_at = 0;
}

int64_t gate_look(void) {
    static CUcontext current; /* of the thread that calls this */
    int64_t now = share_now();
    if (context_count && contexts[0].context != current && !resolve_internal()->set_current(contexts[0].context))
        current = contexts[0].context;
    if (!turn.held) {
        if (markers_pending()) {
            markers_reap();
            return 5 * MS;
        }
        int64_t correction = markers_correction();
        if ((correction > CORRECTION_NS || correction < -CORRECTION_NS) && share_connection() == CONNECTED)
            share_send(WEFT_CHARGE, 0, markers_take_correction() / US, 0);
        return SECOND;
    }
    markers_reap();
    if (launches != launches_seen || waiting || launching) {
        launches_seen = launches;
        idle_since = now;
    }
    int64_t left = markers_in_flight();
    if (now - idle_since >= IDLE_NS && (!markers_pending() && left < now - idle_since)) {
        markers_assume_done(); /* work without a marker: its estimated time is over */
        return_turn(-1);
        return SECOND;
    }
    int64_t next = left > IDLE_NS ? left : IDLE_NS;
    return next < 5 * MS ? next : 5 * MS;
}

void gate_forked(void) {
    turn.held = false;
    waiting = launching = context_count = 0;
    several_gpus = given_up = false;
    asked_at = 0;
    markers_forget();
    estimates_forget();
}
