/* A job on a shared GPU, for the benchmark: `client KIND KERNEL_US COUNT EVERY_US SECONDS`.
 *
 * saturate   launches kernels without an end, never far ahead of the GPU
 * graph      the same with graphs of COUNT kernels
 * burst      COUNT kernels every EVERY_US, and waits for them; prints how many µs each burst took
 * once       one kernel, and waits for it; prints how many µs that took from the start of the process
 *
 * A line `ready` comes first. Kernels take as many µs as their grid is wide: the emulated driver's convention. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define AHEAD 16 /* launches between two looks at the GPU */

typedef int (*call)();

static void *driver;

static call find(const char *name) {
    call found = (call)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

static void check(int status, const char *what) {
    if (status) {
        fprintf(stderr, "%s: %d\n", what, status);
        exit(4);
    }
}

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000ll + at.tv_nsec / 1000;
}

static void wait_until(int64_t us) {
    struct timespec at = {us / 1000000, us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int main(int argc, char **argv) {
    int64_t began = now();
    const char *kind = argc > 5 ? argv[1] : "";
    if (argc != 6)
        return 2;
    unsigned kernel_us = (unsigned)atoi(argv[2]), count = (unsigned)atoi(argv[3]);
    int64_t every = atoll(argv[4]), end = began + (int64_t)(atof(argv[5]) * 1e6);
    void *context, *module, *function, *stream, *events[2], *graph = NULL, *exec = NULL;
    int device;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        return 3;
    check(find("cuInit")(0), "cuInit");
    check(find("cuDeviceGet")(&device, 0), "cuDeviceGet");
    check(find("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
    check(find("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    check(find("cuModuleLoadData")(&module, "module"), "cuModuleLoadData");
    check(find("cuModuleGetFunction")(&function, module, "kernel"), "cuModuleGetFunction");
    check(find("cuStreamCreate")(&stream, 1), "cuStreamCreate");
    call launch_kernel = find("cuLaunchKernel"), launch_graph = find("cuGraphLaunch"), wait = find("cuStreamSynchronize");
    call record = find("cuEventRecord"), wait_event = find("cuEventSynchronize");
    for (int at = 0; at < 2; at++)
        check(find("cuEventCreate")(&events[at], 2), "cuEventCreate");
    int graphs = strcmp(kind, "graph") == 0;
    if (graphs) {
        check(find("cuStreamBeginCapture_v2")(stream, 2), "cuStreamBeginCapture");
        for (unsigned at = 0; at < count; at++)
            check(launch_kernel(function, kernel_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "captured cuLaunchKernel");
        check(find("cuStreamEndCapture")(stream, &graph), "cuStreamEndCapture");
        check(find("cuGraphInstantiateWithFlags")(&exec, graph, 0ull), "cuGraphInstantiate");
    }
    printf("ready\n");
    fflush(stdout);
    if (strcmp(kind, "once") == 0) {
        check(launch_kernel(function, kernel_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
        check(wait(stream), "cuStreamSynchronize");
        printf("%lld\n", (long long)(now() - began));
    } else if (strcmp(kind, "burst") == 0) {
        for (int64_t due = now() + every; due < end; due += every) {
            wait_until(due);
            for (unsigned at = 0; at < count; at++)
                check(launch_kernel(function, kernel_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
            check(wait(stream), "cuStreamSynchronize");
            printf("%lld\n", (long long)(now() - due));
        }
    } else {
        for (uint64_t launches = 0; now() < end; launches++) {
            if (graphs)
                check(launch_graph(exec, stream), "cuGraphLaunch");
            else
                check(launch_kernel(function, kernel_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
            if (launches % AHEAD == 0) {
                void *event = events[launches / AHEAD % 2];
                check(wait_event(event), "cuEventSynchronize");
                check(record(event, stream), "cuEventRecord");
            }
        }
    }
    fflush(stdout);
    _exit(0);
}
