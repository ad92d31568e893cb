/* The job folder: the two pages, this process's entry, and a thread that talks with the arbiter.
 *
 * Everything is made when it is first needed. A child of a fork starts anew: the parent's connection, turn, entry and
 * thread are not its own. */
#define _GNU_SOURCE
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define OPEN_AGAIN_NS SECOND
#define FIRST_WAIT_NS (2 * SECOND) /* for pages that the arbiter has still to make */
#define BACK_OFF_MIN_MS 10
#define BACK_OFF_MAX_MS 1000
#define BEATS_NS (2 * SECOND)
#define DESCRIPTOR_MIN 500 /* programs that close all descriptors seldom reach these */

_Atomic(const volatile struct weft_limits *) share_limits_page;
_Atomic(struct weft_entry *) share_own_entry;
struct weft_use *_Atomic share_use_page;
pthread_mutex_t share_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t open_again_at;
static bool fork_watched;
static ino_t limits_inode;

static pthread_cond_t changed;
static bool changed_ready;
static _Atomic bool serving, ending;
static enum share_connection connection;
static int connected = -1; /* the socket */
static ino_t connected_inode;
static _Atomic uint64_t heard;

int64_t share_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

static const char *folder(void) {
    static const char *_Atomic known;
    const char *path = known;
    if (!path) {
        path = getenv("WEFT_SHARE");
        path = path && *path ? strdup(path) : NULL;
        known = path = path ? path : "";
    }
    return path;
}

bool share_wanted(void) { return *folder() != 0; }

/* At exit: the thread calls the driver no more. What it is doing now may end first, within a bound. */
static void end(void) {
    struct timespec until;
    ending = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_mutex_timedlock(&share_lock, &until) == 0)
        pthread_mutex_unlock(&share_lock);
}

/* Pages -------------------------------------------------------------------------------------------------------------- */

static void *map(const char *name, bool writable, ino_t *inode) {
    char path[PATH_MAX];
    struct stat seen;
    if (snprintf(path, sizeof path, "%s/%s", folder(), name) >= (int)sizeof path)
        return NULL;
    int descriptor = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0)
        return NULL;
    void *page = NULL;
    if (fstat(descriptor, &seen) == 0 && S_ISREG(seen.st_mode) && seen.st_size >= WEFT_PAGE_BYTES) {
        page = mmap(NULL, WEFT_PAGE_BYTES, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, descriptor, 0);
        page = page == MAP_FAILED ? NULL : page;
        if (inode)
            *inode = seen.st_ino;
    }
    close(descriptor);
    return page;
}

static bool map_limits(void) {
    struct weft_limits *limits = map("limits", false, &limits_inode);
    if (limits && (limits->magic != WEFT_LIMITS_MAGIC || limits->version != WEFT_VERSION)) {
        munmap(limits, WEFT_PAGE_BYTES);
        limits = NULL;
    }
    if (limits) /* the page before, if any, stays mapped: a thread may be reading it */
        atomic_store_explicit(&share_limits_page, limits, memory_order_release);
    return limits != NULL;
}

static void child_of_fork(void) {
    pthread_mutex_init(&opening, NULL);
    pthread_mutex_init(&share_lock, NULL);
    changed_ready = false;
    atomic_store(&share_limits_page, NULL); /* the mappings stay; the child opens its own */
    atomic_store(&share_own_entry, NULL);
    share_use_page = NULL;
    open_again_at = 0;
    if (connected >= 0)
        close(connected);
    connected = -1;
    connection = CONNECTING;
    serving = false;
    gate_forked();
    sizes_forget();
    pools_forget();
}

/* pthread_atfork is linked in from glibc and calls this; musl lacks it, and refuses to start a program with a library
 * that needs it. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

static void watch_forks(void) {
    int (*watch)(void (*)(void), void (*)(void), void (*)(void));
    if (__register_atfork) {
        __register_atfork(NULL, NULL, child_of_fork, NULL); /* NULL: for as long as the process lives */
        return;
    }
    watch = (int (*)(void (*)(void), void (*)(void), void (*)(void)))resolve_symbol("pthread_atfork");
    if (watch)
        watch(NULL, NULL, child_of_fork);
}

/* The job's folder is there, and a page in it is not, or is empty: the arbiter is about to make it. */
static bool about_to_appear(void) {
    static const char *const names[] = {"", "limits", "use"};
    for (int at = 0; at < 3; at++) {
        char path[PATH_MAX];
        struct stat seen;
        if (snprintf(path, sizeof path, "%s/%s", folder(), names[at]) >= (int)sizeof path)
            return false;
        bool there = lstat(path, &seen) == 0;
        if (at == 0 && !there)
            return false;
        if (at > 0 && (!there || (S_ISREG(seen.st_mode) && seen.st_size == 0)))
            return true;
    }
    return false;
}

static bool map_both(void) {
    if (!share_use_page) {
        struct weft_use *use = map("use", true, NULL);
        if (use && use->magic == WEFT_USE_MAGIC)
            share_use_page = use;
        else if (use)
            munmap(use, WEFT_PAGE_BYTES);
    }
    return share_use_page && map_limits();
}

const volatile struct weft_limits *share_open(void) {
    if (!share_wanted() || ending)
        return NULL;
    if (open_again_at && share_now() < open_again_at)
        return NULL;
    pthread_mutex_lock(&opening);
    if (!atomic_load(&share_limits_page)) {
        bool mapped = map_both();
        for (int64_t until = share_now() + FIRST_WAIT_NS; !mapped && !open_again_at && about_to_appear();) {
            if (share_now() > until)
                break;
            nanosleep(&(struct timespec){0, 5 * MS}, NULL);
            mapped = map_both();
        }
        if (!mapped)
            open_again_at = share_now() + OPEN_AGAIN_NS;
        else if (!fork_watched) {
            fork_watched = true;
            watch_forks();
        }
    }
    pthread_mutex_unlock(&opening);
    return atomic_load(&share_limits_page);
}

static uint32_t own_generation;

/* An entry with this process's id is of the program before an exec, or of a dead process: taken over. */
static struct weft_entry *claim(struct weft_use *use) {
    uint32_t mine = (uint32_t)getpid();
    struct weft_entry *found = NULL;
    for (int at = 0; at < WEFT_ENTRIES && !found; at++)
        if (__atomic_load_n(&use->entries[at].pid, __ATOMIC_ACQUIRE) == mine)
            found = &use->entries[at];
    for (int at = 0; at < WEFT_ENTRIES && !found; at++) {
        uint32_t none = 0;
        if (__atomic_compare_exchange_n(&use->entries[at].pid, &none, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            found = &use->entries[at];
    }
    if (found) {
        own_generation = __atomic_add_fetch(&found->generation, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&found->memory_used, sizes_total() + pools_kept(), __ATOMIC_SEQ_CST);
        found->launches = found->busy_us = 0;
        found->beat_ns = (uint64_t)share_now();
    }
    return found;
}

struct weft_entry *share_entry(void) {
    struct weft_entry *entry = atomic_load(&share_own_entry);
    if (entry || !share_limits() || !share_use_page)
        return entry;
    pthread_mutex_lock(&opening);
    entry = atomic_load(&share_own_entry);
    if (!entry) {
        entry = claim(share_use_page);
        atomic_store(&share_own_entry, entry);
    }
    pthread_mutex_unlock(&opening);
    if (entry)
        share_serve();
    return entry;
}

/* The connection ----------------------------------------------------------------------------------------------------- */

enum share_connection share_connection(void) { return connection; }
uint64_t share_heard(void) { return heard; }

bool share_arbiter_beats(void) {
    const volatile struct weft_limits *limits = atomic_load(&share_limits_page);
    int64_t beat = limits ? (int64_t)limits->arbiter_beat : 0, now = share_now();
    return beat > now - BEATS_NS && beat < now + BEATS_NS;
}

void share_wait(int64_t ns) {
    struct timespec until;
    int64_t end_at = share_now() + ns;
    if (!changed_ready) {
        struct timespec nap = {0, (long)(ns < SECOND ? ns : SECOND - 1)};
        pthread_mutex_unlock(&share_lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&share_lock);
        return;
    }
    until.tv_sec = (time_t)(end_at / SECOND);
    until.tv_nsec = (long)(end_at % SECOND);
    pthread_cond_timedwait(&changed, &share_lock, &until);
}

/* A program may have closed the descriptor, and opened something of its own under its number. */
static bool still_ours(int descriptor) {
    struct stat seen;
    return descriptor >= 0 && fstat(descriptor, &seen) == 0 && S_ISSOCK(seen.st_mode) && seen.st_ino == connected_inode;
}

bool share_send(uint32_t op, uint64_t id, int64_t a, int64_t b) {
    struct weft_message message = {op, (uint32_t)getpid(), id, (uint64_t)a, (uint64_t)b};
    if (connection != CONNECTED || !still_ours(connected))
        return false;
    return send(connected, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof message;
}

static void connect_to_arbiter(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX];
    struct stat seen;
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder()) >= (int)sizeof address.sun_path)
        return;
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        return;
    int high = fcntl(descriptor, F_DUPFD_CLOEXEC, DESCRIPTOR_MIN);
    if (high >= 0) {
        close(descriptor);
        descriptor = high;
    }
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) < 0 || fstat(descriptor, &seen) < 0) {
        close(descriptor);
        return;
    }
    struct stat page;
    if (snprintf(path, sizeof path, "%s/limits", folder()) < (int)sizeof path && stat(path, &page) == 0 &&
        page.st_ino != limits_inode)
        map_limits(); /* an arbiter that was started again may have made another page */
    pthread_mutex_lock(&opening);
    struct weft_entry *entry = atomic_load(&share_own_entry);
    struct weft_use *use = share_use_page;
    if (entry && (entry->pid != (uint32_t)getpid() || entry->generation != own_generation)) {
        entry = claim(use); /* an arbiter that lost this process took it for dead */
        atomic_store(&share_own_entry, entry);
    }
    pthread_mutex_unlock(&opening);
    pthread_mutex_lock(&share_lock);
    connected = descriptor;
    connected_inode = seen.st_ino;
    connection = CONNECTED;
    share_send(WEFT_HELLO, 0, entry ? entry - use->entries : WEFT_ENTRIES, entry ? entry->generation : 0);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&share_lock);
}

static void disconnect(void) {
    pthread_mutex_lock(&share_lock);
    if (still_ours(connected))
        close(connected);
    connected = -1;
    connection = ALONE;
    gate_disconnected();
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&share_lock);
}

/* Read what the arbiter sent; false at its end. */
static bool hear(void) {
    for (;;) {
        struct weft_message message;
        ssize_t size = still_ours(connected) ? recv(connected, &message, sizeof message, MSG_DONTWAIT) : 0;
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (size <= 0)
            return false;
        if (size != sizeof message)
            continue;
        heard++;
        pthread_mutex_lock(&share_lock);
        if (message.op == WEFT_GRANT)
            gate_granted(message.turn, (int64_t)message.a, (int64_t)message.b);
        else if (message.op == WEFT_REVOKE)
            gate_revoked(message.turn);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&share_lock);
    }
}

static void *serve(void *argument) {
    int back_off = BACK_OFF_MIN_MS;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const struct driver *driver = resolve_internal();
    (void)argument;
    if (driver)
        driver->exchange_mode(&mode);
    while (!ending) {
        int64_t next = (int64_t)back_off * MS;
        if (connected < 0) {
            connect_to_arbiter();
            if (connected < 0) {
                if (connection == CONNECTING)
                    disconnect();
                back_off = back_off * 2 < BACK_OFF_MAX_MS ? back_off * 2 : BACK_OFF_MAX_MS;
            } else
                back_off = BACK_OFF_MIN_MS;
        }
        if (connected >= 0 || next > 5 * MS) {
            pthread_mutex_lock(&share_lock);
            int64_t wanted = ending ? SECOND : gate_look();
            pthread_mutex_unlock(&share_lock);
            next = connected >= 0 || wanted < next ? wanted : next;
        }
        struct weft_entry *entry = atomic_load(&share_own_entry);
        if (!ending)
            pools_refresh();
        if (entry)
            __atomic_store_n(&entry->beat_ns, (uint64_t)share_now(), __ATOMIC_RELAXED);
        struct pollfd watched = {still_ours(connected) ? connected : -1, POLLIN, 0};
        if (connected >= 0 && watched.fd < 0) {
            disconnect();
            continue;
        }
        struct timespec timeout = {(time_t)(next / SECOND), (long)(next % SECOND)};
        if (ppoll(&watched, 1, &timeout, NULL) > 0 && !hear())
            disconnect();
    }
    return NULL;
}

void share_serve(void) {
    if (atomic_exchange(&serving, true))
        return;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    static bool at_exit;
    if (!at_exit)
        at_exit = atexit(end) == 0;
    resolve_internal(); /* here: the thread must not wait for a library that is being loaded */
    pthread_mutex_lock(&share_lock);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &monotonic);
    changed_ready = true;
    pthread_mutex_unlock(&share_lock);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, &attributes, serve, NULL) != 0) {
        pthread_mutex_lock(&share_lock);
        connection = ALONE;
        pthread_mutex_unlock(&share_lock);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}
