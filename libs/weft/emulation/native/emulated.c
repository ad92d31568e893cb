/* The calls of the emulated driver: devices, contexts, modules, streams, launches, events. */
#define _GNU_SOURCE
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXTS 16

struct context {
    bool live;
    struct emulated_device *device;
};

struct function {
    char name[64];
};

static struct context primary[EMULATED_DEVICES];
static int retained[EMULATED_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct context *stack[CONTEXTS];
static __thread int depth;

struct emulated_device *emulated_current(void) {
    return depth && stack[depth - 1] ? stack[depth - 1]->device : NULL;
}

struct emulated_stream *emulated_stream(CUstream stream, bool per_thread) {
    struct emulated_device *device = emulated_current();
    if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
        return stream;
    if (!device)
        return NULL;
    return stream == CU_STREAM_PER_THREAD || (!stream && per_thread) ? &device->per_thread : &device->legacy;
}

/* Devices ------------------------------------------------------------------------------------------------------------ */

EXPORT CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : emulated_open_all(); }

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = emulated_device_count();
    return *count ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int number) {
    if (!emulated_device(number))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = number;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    if (!emulated_device(device) || size <= 0)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)size, "Weft emulated GPU");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid, emulated_device(device)->uuid, 16);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(void *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = atomic_load(&emulated_device(device)->file->memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int which, CUdevice device) {
    static const struct {
        int which, value;
    } known[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {10, 32},
        {12, 65536}, {13, 1000000}, {16, 16}, {39, 2048}, {75, 9}, {76, 0}, {83, 1}, {89, 1}, {95, 1}, {102, 1}, {115, 1},
    };
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = 0;
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (known[at].which == which)
            *value = known[at].value;
    return CUDA_SUCCESS;
}

/* Contexts ----------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    primary[device] = (struct context){.live = true, .device = emulated_device(device)};
    retained[device]++;
    pthread_mutex_unlock(&lock);
    *context = &primary[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    emulated_drain(emulated_device(device));
    emulated_free_all(emulated_device(device), &primary[device]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (!emulated_device(device) || !retained[device])
        return CUDA_ERROR_INVALID_DEVICE;
    return --retained[device] ? CUDA_SUCCESS : cuDevicePrimaryCtxReset_v2(device);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    (void)flags;
    return emulated_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!emulated_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = retained[device] > 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    if (!emulated_device(device) || depth == CONTEXTS)
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *made = calloc(1, sizeof *made);
    *made = (struct context){.live = true, .device = emulated_device(device)};
    *context = stack[depth++] = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    struct context *made = context;
    if (!made || !made->live)
        return CUDA_ERROR_INVALID_CONTEXT;
    emulated_drain(made->device);
    emulated_free_all(made->device, made);
    made->live = false; /* never freed: another thread may still have it current */
    if (depth && stack[depth - 1] == made)
        depth--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (!depth)
        depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = depth ? stack[depth - 1] : NULL;
    return emulated_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (depth == CONTEXTS)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = emulated_current()->number;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    emulated_drain(emulated_current());
    return CUDA_SUCCESS;
}

/* Modules: any bytes are a module, any name is a function ------------------------------------------------------------ */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = image ? malloc(1) : NULL;
    return image ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct function *made = calloc(1, sizeof *made);
    (void)module;
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = made;
    return CUDA_SUCCESS;
}

/* How long a kernel takes: one named `nothing` no time, one named `microseconds` what its first parameter says (an
 * unsigned number), any other 1 µs for each block of the grid's first dimension. */
uint64_t emulated_kernel_ns(CUfunction function, unsigned blocks, void **parameters) {
    const struct function *made = function;
    if (strcmp(made->name, "nothing") == 0)
        return 0;
    if (strcmp(made->name, "microseconds") == 0 && parameters)
        return *(const unsigned *)parameters[0] * 1000ull;
    return blocks * 1000ull;
}

/* Streams ------------------------------------------------------------------------------------------------------------ */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct emulated_stream *made = calloc(1, sizeof *made);
    made->device = emulated_current();
    *stream = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    (void)stream; /* never freed: its items may still be in the queue */
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle, bool per_thread) {
    struct emulated_stream *stream = emulated_stream(handle, per_thread);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->default_stream)
        emulated_drain(stream->device);
    else
        emulated_wait(stream->device, stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) { return synchronize(stream, false); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { return synchronize(stream, true); }

EXPORT CUresult cuStreamQuery(CUstream handle) {
    struct emulated_stream *stream = emulated_stream(handle, false);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    return emulated_done(stream->device, stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)stream, (void)event, (void)flags; /* one queue in order of arrival: it has waited already */
    return CUDA_SUCCESS;
}

/* Launches ----------------------------------------------------------------------------------------------------------- */

static CUresult launch(CUfunction f, unsigned blocks, CUstream handle, void **parameters, bool per_thread) {
    struct emulated_stream *stream = emulated_stream(handle, per_thread);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!f || !blocks)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    uint64_t ns = emulated_kernel_ns(f, blocks, parameters);
    if (stream->capturing)
        stream->graph->ns += ns;
    else
        emulated_launch(stream->device, stream, ns);
    return CUDA_SUCCESS;
}

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define UNUSED_GRID (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared

#define LAUNCHES(suffix, per_thread)                                                                                   \
    EXPORT CUresult cuLaunchKernel##suffix(CUfunction f, GRID, CUstream stream, void **parameters, void **extra) {     \
        UNUSED_GRID, (void)extra;                                                                                      \
        return launch(f, gx, stream, parameters, per_thread);                                                          \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *config, CUfunction f, void **parameters,            \
                                             void **extra) {                                                           \
        (void)extra;                                                                                                   \
        return launch(f, config->gridDimX, config->hStream, parameters, per_thread);                                   \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchCooperativeKernel##suffix(CUfunction f, GRID, CUstream stream, void **parameters) {        \
        UNUSED_GRID;                                                                                                   \
        return launch(f, gx, stream, parameters, per_thread);                                                          \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchHostFunc##suffix(CUstream handle, void (*call)(void *), void *argument) {                  \
        struct emulated_stream *stream = emulated_stream(handle, per_thread);                                          \
        if (!stream)                                                                                                   \
            return CUDA_ERROR_INVALID_CONTEXT;                                                                         \
        emulated_call(stream->device, stream, call, argument);                                                         \
        return CUDA_SUCCESS;                                                                                           \
    }

LAUNCHES(, false)
LAUNCHES(_ptsz, true)

/* Events ------------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof(struct emulated_event));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    struct emulated_event *made = event;
    if (!atomic_load(&made->pending)) /* otherwise left: its item is still in the queue */
        free(made);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream handle, bool per_thread) {
    struct emulated_stream *stream = emulated_stream(handle, per_thread);
    if (!stream || !event)
        return stream ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    if (!stream->capturing)
        emulated_record(stream->device, stream, event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, false); }
EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, stream, true); }

EXPORT CUresult cuEventQuery(CUevent event) {
    struct emulated_event *made = event;
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    bool done = !atomic_load(&made->pending) && atomic_load(&made->at_ns) <= emulated_now();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    emulated_wait_event(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    struct emulated_event *first = begin, *last = end;
    if (!first->device || !last->device)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t from = atomic_load(&first->at_ns), to = atomic_load(&last->at_ns), now = emulated_now();
    if (atomic_load(&first->pending) || atomic_load(&last->pending) || from > now || to > now)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent begin, CUevent end) {
    return cuEventElapsedTime(milliseconds, begin, end);
}
