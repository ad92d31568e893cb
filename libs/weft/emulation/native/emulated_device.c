/* The device behind the emulated driver: time and memory shared by processes through a file.
 *
 * Device time is reserved: a compare-and-swap moves the instant until which the device has work. No process holds a
 * lock that another waits for, so a process that is killed or stopped blocks none. A long kernel takes its time in
 * slices, as a real device gives contexts their turns. Whoever sleeps too long loses no device time: work that was
 * queued begins where the work before it ended, not where a thread woke up. */
#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 2000000ull
#define AHEAD_NS 100000ull /* so far ahead of the clock the next long kernel is taken; short ones up to a slice */
#define SLOWDOWN_NS 50000000ull

static struct emulated_device devices[EMULATED_DEVICES];
static int count = -1;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pid_t opened_by;

uint64_t emulated_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void emulated_sleep_until(uint64_t ns) {
    struct timespec until = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    if (ns > emulated_now())
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
        }
}

static void precise_sleep(void) { prctl(PR_SET_TIMERSLACK, 1ul); }

/* The indexes of this run's GPUs on their node: WEFT_GPUS, `0` without. */
static int gpu_index(int number) {
    const char *text = getenv("WEFT_GPUS");
    if (!text || !*text)
        return number == 0 ? 0 : -1;
    for (int at = 0;; at++) {
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text || index < 0 || index > 4096)
            return -1;
        if (at == number)
            return (int)index;
        if (*end != ',')
            return -1;
        text = end + 1;
    }
}

int emulated_device_count(void) { return count < 0 ? 0 : count; }

struct emulated_device *emulated_device(int number) {
    return number >= 0 && number < emulated_device_count() ? &devices[number] : NULL;
}

static void name_device(struct emulated_device *device, const char *folder, int index) {
    struct stat seen = {0};
    stat(folder, &seen);
    uint64_t hash = 0xcbf29ce484222325ull;
    uint64_t parts[3] = {(uint64_t)seen.st_dev, (uint64_t)seen.st_ino, (uint64_t)index};
    for (int at = 0; at < 16; at++) {
        hash = (hash ^ ((const uint8_t *)parts)[at % sizeof parts] ^ (uint64_t)index ^ (uint64_t)at) * 0x100000001b3ull;
        device->uuid[at] = (uint8_t)(hash >> 32);
    }
}

/* The queue ---------------------------------------------------------------------------------------------------------- */

static void read_slowdown(struct emulated_device *device, uint64_t now) {
    if (device->slowdown_read_ns && now - device->slowdown_read_ns < SLOWDOWN_NS)
        return;
    device->slowdown_read_ns = now;
    device->slowdown = 1.0;
    const char *folder = getenv("WEFT_EMULATED_SLOWDOWNS");
    char path[PATH_MAX], text[64] = "";
    if (!folder || snprintf(path, sizeof path, "%s/%d", folder, gpu_index(device->number)) >= (int)sizeof path)
        return;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return;
    ssize_t size = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    double slowdown = size > 0 ? strtod(text, NULL) : 1.0;
    if (slowdown >= 0.1 && slowdown <= 100.0)
        device->slowdown = slowdown;
}

/* Reserve device time, from `ready` on at the earliest; returns when it is over. */
static uint64_t reserve(struct emulated_device *device, uint64_t ready, uint64_t ns) {
    atomic_fetch_add(&device->mine->busy_ns, ns);
    atomic_fetch_add(&device->file->busy_ns, ns);
    uint64_t free_at = atomic_load(&device->file->free_at), begin;
    do
        begin = free_at > ready ? free_at : ready;
    while (!atomic_compare_exchange_weak(&device->file->free_at, &free_at, begin + ns));
    return begin + ns;
}

/* Kernels are taken in time slices, whatever their length: so far ahead of the clock this one may begin. */
static uint64_t ahead(const struct item *item) {
    return item->kind == KERNEL && item->ns > SLICE_NS - AHEAD_NS ? AHEAD_NS : SLICE_NS - item->ns;
}

/* Move on as far as the clock is; under the lock. A HOST item is left to the thread. */
static void advance(struct emulated_device *device) {
    uint64_t now = emulated_now();
    bool moved = false;
    read_slowdown(device, now);
    while (device->first < device->end) {
        struct item *item = &device->queue[device->first % QUEUE];
        if (device->tail_ns > now + ahead(item))
            break;
        uint64_t ready = item->queued_ns > device->tail_ns ? item->queued_ns : device->tail_ns;
        if (item->kind == HOST)
            break;
        if (item->kind == KERNEL) {
            uint64_t slice = item->ns > SLICE_NS ? SLICE_NS : item->ns;
            if (slice)
                device->tail_ns = reserve(device, ready, slice);
            item->ns -= slice;
            if (item->ns) { /* its other slices come after what other processes wait for */
                item->queued_ns = device->tail_ns;
                continue;
            }
            atomic_fetch_add(&device->mine->kernels, 1);
            atomic_fetch_add(&device->file->kernels, 1);
        } else if (item->event) {
            atomic_store(&item->event->at_ns, ready);
            atomic_fetch_sub(&item->event->pending, 1);
        }
        item->stream->done_ns = ready > device->tail_ns ? ready : device->tail_ns;
        device->first++;
        moved = true;
    }
    if (moved)
        pthread_cond_broadcast(&device->moved);
}

static void *serve(void *argument) {
    struct emulated_device *device = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    precise_sleep();
    device->mine = emulated_claim(device->file); /* this thread holds its lock until the process ends */
    pthread_mutex_lock(&device->lock);
    device->running_host = false;
    pthread_cond_broadcast(&device->moved);
    if (!device->mine) {
        pthread_mutex_unlock(&device->lock);
        return NULL;
    }
    for (;;) {
        advance(device);
        struct item *item = &device->queue[device->first % QUEUE];
        if (device->first == device->end) {
            pthread_cond_wait(&device->filled, &device->lock);
        } else if (item->kind == HOST && device->tail_ns <= emulated_now()) {
            struct item copy = *item;
            device->running_host = true;
            pthread_mutex_unlock(&device->lock);
            copy.call(copy.argument);
            pthread_mutex_lock(&device->lock);
            device->running_host = false;
            device->tail_ns = emulated_now();
            copy.stream->done_ns = device->tail_ns;
            device->first++;
            pthread_cond_broadcast(&device->moved);
        } else {
            uint64_t until = device->tail_ns - (item->kind == HOST ? 0 : ahead(item) / 2);
            pthread_mutex_unlock(&device->lock);
            emulated_sleep_until(until);
            pthread_mutex_lock(&device->lock);
        }
    }
}

static CUresult open_device(struct emulated_device *device, int number, const char *folder) {
    memset(device, 0, sizeof *device);
    device->number = number;
    device->file = emulated_open_file(folder, gpu_index(number));
    if (!device->file)
        return CUDA_ERROR_NO_DEVICE;
    name_device(device, folder, gpu_index(number));
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->pool.lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&device->filled, &monotonic);
    pthread_cond_init(&device->moved, &monotonic);
    device->legacy = (struct emulated_stream){.device = device, .default_stream = true};
    device->per_thread = (struct emulated_stream){.device = device};
    device->running_host = true; /* until the thread has its place */
    if (pthread_create(&device->thread, NULL, serve, device) != 0)
        return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&device->lock);
    while (device->running_host)
        pthread_cond_wait(&device->moved, &device->lock);
    pthread_mutex_unlock(&device->lock);
    return device->mine ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult emulated_open_all(void) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    if (count >= 0 && opened_by != getpid())
        status = CUDA_ERROR_NOT_INITIALIZED; /* as the real one after fork */
    else if (count < 0) {
        const char *folder = getenv("WEFT_EMULATED_DEVICE");
        int wanted = 0;
        while (folder && wanted < EMULATED_DEVICES && gpu_index(wanted) >= 0)
            wanted++;
        if (wanted == 0)
            status = CUDA_ERROR_NO_DEVICE;
        for (int number = 0; number < wanted && !status; number++)
            status = open_device(&devices[number], number, folder);
        if (!status) {
            opened_by = getpid();
            count = wanted;
        }
    }
    pthread_mutex_unlock(&opening);
    return status;
}

static uint64_t push(struct emulated_device *device, struct emulated_stream *stream, struct item item) {
    item.queued_ns = emulated_now();
    item.stream = stream;
    while (device->end - device->first >= QUEUE)
        pthread_cond_wait(&device->moved, &device->lock);
    bool idle = device->first == device->end;
    device->queue[device->end % QUEUE] = item;
    uint64_t number = ++device->end;
    stream->last = number;
    if (idle) {
        advance(device);
        if (device->first < device->end)
            pthread_cond_signal(&device->filled);
    }
    return number;
}

void emulated_launch(struct emulated_device *device, struct emulated_stream *stream, uint64_t ns) {
    pthread_mutex_lock(&device->lock);
    if (ns || device->first < device->end)
        push(device, stream, (struct item){.kind = KERNEL, .ns = (uint64_t)((double)ns * device->slowdown)});
    pthread_mutex_unlock(&device->lock);
}

void emulated_record(struct emulated_device *device, struct emulated_stream *stream, struct emulated_event *event) {
    pthread_mutex_lock(&device->lock);
    if (device->first == device->end) { /* nothing is before it */
        uint64_t now = emulated_now();
        atomic_store(&event->at_ns, now > device->tail_ns ? now : device->tail_ns);
        event->number = device->end;
    } else {
        atomic_fetch_add(&event->pending, 1);
        event->number = device->end + 1;
        push(device, stream, (struct item){.kind = EVENT, .event = event});
    }
    event->device = device;
    pthread_mutex_unlock(&device->lock);
}

void emulated_call(struct emulated_device *device, struct emulated_stream *stream, void (*call)(void *), void *argument) {
    pthread_mutex_lock(&device->lock);
    push(device, stream, (struct item){.kind = HOST, .call = call, .argument = argument});
    pthread_mutex_unlock(&device->lock);
}

bool emulated_done(struct emulated_device *device, struct emulated_stream *stream) {
    pthread_mutex_lock(&device->lock);
    bool done = device->first >= stream->last && stream->done_ns <= emulated_now();
    pthread_mutex_unlock(&device->lock);
    return done;
}

void emulated_wait(struct emulated_device *device, struct emulated_stream *stream) {
    pthread_mutex_lock(&device->lock);
    while (device->first < stream->last)
        pthread_cond_wait(&device->moved, &device->lock);
    uint64_t until = stream->done_ns;
    pthread_mutex_unlock(&device->lock);
    emulated_sleep_until(until);
}

void emulated_drain(struct emulated_device *device) {
    pthread_mutex_lock(&device->lock);
    for (uint64_t end = device->end; device->first < end;)
        pthread_cond_wait(&device->moved, &device->lock);
    uint64_t until = device->tail_ns;
    pthread_mutex_unlock(&device->lock);
    emulated_sleep_until(until);
}

void emulated_wait_event(struct emulated_event *event) {
    struct emulated_device *device = event->device;
    if (!device)
        return;
    pthread_mutex_lock(&device->lock);
    while (atomic_load(&event->pending))
        pthread_cond_wait(&device->moved, &device->lock);
    pthread_mutex_unlock(&device->lock);
    emulated_sleep_until(atomic_load(&event->at_ns));
}

/* Memory ------------------------------------------------------------------------------------------------------------- */

uint64_t emulated_memory_used(struct emulated_device *device) {
    uint64_t used = 0;
    for (int at = 0; at < EMULATED_PROCESSES; at++)
        used += atomic_load(&device->file->processes[at].memory);
    return used;
}

/* Add first, then look: no two processes can both believe that the last bytes are theirs. */
CUresult emulated_take(struct emulated_device *device, uint64_t bytes) {
    uint64_t all = atomic_load(&device->file->memory);
    if (bytes > all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int tries = 0; tries < 2; tries++) {
        atomic_fetch_add(&device->mine->memory, bytes);
        if (emulated_memory_used(device) <= all)
            return CUDA_SUCCESS;
        atomic_fetch_sub(&device->mine->memory, bytes);
        emulated_bury_dead(device->file);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void emulated_give(struct emulated_device *device, uint64_t bytes) { atomic_fetch_sub(&device->mine->memory, bytes); }
