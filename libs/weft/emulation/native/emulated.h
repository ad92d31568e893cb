/* The emulated driver: no hardware. Kernels compute nothing; they take the device's time. */
#ifndef WEFT_EMULATED_H
#define WEFT_EMULATED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

#define EXPORT __attribute__((visibility("default")))

#define EMULATED_MAGIC 0x31554d4554464557ull /* "WEFTEMU1" */
#define EMULATED_VERSION 1
#define EMULATED_DEVICES 8
#define EMULATED_PROCESSES 1024

/* One process on the device, living or dead: what a dead one used stays until its place is needed. */
struct emulated_process {
    _Atomic uint32_t pid; /* as the process sees itself */
    _Atomic uint32_t taken;
    _Atomic uint64_t memory;  /* bytes */
    _Atomic uint64_t busy_ns; /* device time */
    _Atomic uint64_t kernels;
    _Atomic uint64_t began_ns; /* CLOCK_MONOTONIC */
    uint8_t spare[24];
    pthread_mutex_t alive; /* robust; locked by a thread of the process until the process ends */
    uint8_t rest[64 - sizeof(pthread_mutex_t)];
};

/* The file of one device, shared by all processes on it. libs/weft/emulation/device.py reads it. */
struct emulated_file {
    uint64_t magic;
    uint32_t version;
    uint32_t spare;
    _Atomic uint64_t memory;   /* bytes that the device has */
    _Atomic uint64_t free_at;  /* CLOCK_MONOTONIC ns: until then the device has work */
    _Atomic uint64_t busy_ns;  /* device time of all processes */
    _Atomic uint64_t kernels;
    uint8_t rest[128 - 48];
    struct emulated_process processes[EMULATED_PROCESSES];
};

_Static_assert(sizeof(struct emulated_process) == 128, "a process is 128 bytes");
_Static_assert(sizeof(struct emulated_file) == 128 + 128 * EMULATED_PROCESSES, "no padding");

struct emulated_stream {
    bool capturing, invalid, default_stream;
    int capture_mode;
    pthread_t captured_by;
    struct emulated_graph *graph;
    uint64_t last;    /* number of its newest item */
    uint64_t done_ns; /* when its newest completed item is, or was, over */
    struct emulated_device *device;
};

struct emulated_event {
    uint64_t number;         /* of the item that records it; 0: never recorded */
    _Atomic uint64_t at_ns; /* when it was, or will be, complete */
    _Atomic int pending;    /* its item is still in the queue */
    struct emulated_device *device;
};

struct emulated_graph {
    uint64_t ns;
};

struct item {
    enum { KERNEL, EVENT, HOST } kind;
    uint64_t queued_ns;
    uint64_t ns; /* of a kernel: what it has still to take */
    struct emulated_stream *stream;
    struct emulated_event *event;
    void (*call)(void *);
    void *argument;
};

/* The memory pool of a device, for allocations in a stream. */
struct emulated_pool {
    pthread_mutex_t lock;
    uint64_t used, reserved, threshold; /* bytes; freed memory beyond the threshold goes back to the device */
};

#define QUEUE 1024

/* One device as one process sees it. One queue, in order of arrival, whatever the stream. */
struct emulated_device {
    int number;
    struct emulated_file *file;
    struct emulated_process *mine;
    pthread_mutex_t lock;
    pthread_cond_t filled, moved;
    struct item queue[QUEUE];
    uint64_t first, end; /* numbers of items; `first` is the next one to run */
    uint64_t tail_ns;    /* when the device time reserved so far is over */
    uint64_t slowdown_read_ns;
    double slowdown;
    bool running_host;
    pthread_t thread;
    uint8_t uuid[16];
    struct emulated_stream legacy, per_thread;
    struct emulated_pool pool;
};

int emulated_device_count(void);
CUresult emulated_open_all(void); /* cuInit */
struct emulated_device *emulated_device(int number);
CUresult emulated_take(struct emulated_device *device, uint64_t bytes); /* memory of the device */
void emulated_give(struct emulated_device *device, uint64_t bytes);
void emulated_free_all(struct emulated_device *device, void *owner); /* a context's or a graph's memory */
uint64_t emulated_memory_used(struct emulated_device *device);

/* The file. */
struct emulated_file *emulated_open_file(const char *folder, int index); /* NULL: it cannot be had */
struct emulated_process *emulated_claim(struct emulated_file *file);      /* NULL: no place; locked by this thread */
void emulated_bury_dead(struct emulated_file *file);                      /* take back the memory of the dead */

/* The queue. */
void emulated_launch(struct emulated_device *device, struct emulated_stream *stream, uint64_t ns);
void emulated_record(struct emulated_device *device, struct emulated_stream *stream, struct emulated_event *event);
void emulated_call(struct emulated_device *device, struct emulated_stream *stream, void (*call)(void *), void *argument);
bool emulated_done(struct emulated_device *device, struct emulated_stream *stream);
void emulated_wait(struct emulated_device *device, struct emulated_stream *stream);
void emulated_drain(struct emulated_device *device);
void emulated_wait_event(struct emulated_event *event);
uint64_t emulated_now(void);
void emulated_sleep_until(uint64_t ns);

/* Contexts, streams and captures, for the files of calls. */
struct emulated_device *emulated_current(void);
struct emulated_stream *emulated_stream(CUstream stream, bool per_thread);
bool emulated_unsafe(void); /* an unsafe call during a capture: it must fail, and the capture with it */

void *emulated_find(const char *name, bool per_thread);

#endif
