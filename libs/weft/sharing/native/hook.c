/* The calls that the hook stands in for: launches pass the gate, memory is held to the cap, and a program that asks
 * for a call by its name is given ours. What the driver answers is what the program is answered. */
#include "hook.h"

#include <string.h>

#define DRIVER(which, type) DRIVER_OF(which, driver, type)
#define DRIVER_OF(which, variable, type) __typeof__(type) variable = (type)resolve_driver(HOOKED_##which)
#define NEED(driver)                                                                                                   \
    if (UNLIKELY(!(driver)))                                                                                           \
    return CUDA_ERROR_NOT_INITIALIZED

/* Launches ----------------------------------------------------------------------------------------------------------- */

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID_ARGUMENTS gx, gy, gz, bx, by, bz, shared

typedef CUresult (*launch_t)(CUfunction, GRID, CUstream, void **, void **);
typedef CUresult (*launch_ex_t)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*launch_cooperative_t)(CUfunction, GRID, CUstream, void **);
typedef CUresult (*graph_launch_t)(CUgraphExec, CUstream);

#define LAUNCHES(suffix, per_thread)                                                                                   \
    EXPORT CUresult cuLaunchKernel##suffix(CUfunction f, GRID, CUstream stream, void **parameters, void **extra) {     \
        DRIVER(LaunchKernel##suffix, launch_t);                                                                        \
        NEED(driver);                                                                                                  \
        struct launch launch;                                                                                          \
        gate_enter(&launch, &(struct kernel){f, {gx, gy, gz}, {bx, by, bz}}, stream, per_thread);                      \
        CUresult status = driver(f, GRID_ARGUMENTS, stream, parameters, extra);                                        \
        gate_leave(&launch, status);                                                                                   \
        return status;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) { \
        DRIVER(LaunchKernelEx##suffix, launch_ex_t);                                                                   \
        NEED(driver);                                                                                                  \
        struct launch launch = {.gated = false};                                                                       \
        if (c)                                                                                                         \
            gate_enter(&launch,                                                                                        \
                       &(struct kernel){f,                                                                             \
                                        {c->gridDimX, c->gridDimY, c->gridDimZ},                                       \
                                        {c->blockDimX, c->blockDimY, c->blockDimZ}},                                   \
                       c->hStream, per_thread);                                                                        \
        CUresult status = driver(c, f, parameters, extra);                                                             \
        gate_leave(&launch, status);                                                                                   \
        return status;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult cuLaunchCooperativeKernel##suffix(CUfunction f, GRID, CUstream stream, void **parameters) {        \
        DRIVER(LaunchCooperativeKernel##suffix, launch_cooperative_t);                                                 \
        NEED(driver);                                                                                                  \
        struct launch launch;                                                                                          \
        gate_enter(&launch, &(struct kernel){f, {gx, gy, gz}, {bx, by, bz}}, stream, per_thread);                      \
        CUresult status = driver(f, GRID_ARGUMENTS, stream, parameters);                                               \
        gate_leave(&launch, status);                                                                                   \
        return status;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult cuGraphLaunch##suffix(CUgraphExec graph, CUstream stream) {                                        \
        DRIVER(GraphLaunch##suffix, graph_launch_t);                                                                   \
        NEED(driver);                                                                                                  \
        struct launch launch;                                                                                          \
        gate_enter(&launch, &(struct kernel){graph, {0, 0, 0}, {0, 0, 0}}, stream, per_thread);                        \
        CUresult status = driver(graph, stream);                                                                       \
        gate_leave(&launch, status);                                                                                   \
        return status;                                                                                                 \
    }

LAUNCHES(, false)
LAUNCHES(_ptsz, true)

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    DRIVER(StreamDestroy, CUresult(*)(CUstream));
    NEED(driver);
    gate_stream_ends(stream);
    return driver(stream);
}

/* Memory ------------------------------------------------------------------------------------------------------------- */

static void *context(void) {
    CUcontext current = NULL;
    const struct driver *driver = resolve_internal();
    return driver && driver->current(&current) == CUDA_SUCCESS ? current : NULL;
}

/* Take the bytes, call the driver, remember what it gave; `given` is the variable that has its answer. */
#define COUNTED(kind, bytes, owner, given, call)                                                                       \
    if (!share_limits())                                                                                               \
        return (call);                                                                                                 \
    uint64_t wanted = (bytes);                                                                                         \
    if (!memory_take(wanted))                                                                                          \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    CUresult status = (call);                                                                                          \
    if (status != CUDA_SUCCESS || !size_put(kind, (uint64_t)(given), wanted, owner))                                   \
        memory_give(wanted);                                                                                           \
    return status

/* Forget first: as soon as the driver has freed it, another thread may be given the same address. */
#define UNCOUNTED(give, kind, key, call)                                                                               \
    uint64_t freed = size_drop(kind, (uint64_t)(key));                                                                 \
    CUresult status = (call);                                                                                          \
    if (status == CUDA_SUCCESS)                                                                                        \
        give(freed);                                                                                                   \
    else if (freed)                                                                                                    \
        size_put(kind, (uint64_t)(key), freed, context());                                                             \
    return status

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    DRIVER(MemAlloc, CUresult(*)(CUdeviceptr *, size_t));
    NEED(driver);
    COUNTED(MEMORY, bytes, context(), *at, driver(at, bytes));
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    DRIVER(MemAllocPitch, CUresult(*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned));
    NEED(driver);
    size_t rounded = (width + 511) & ~(size_t)511; /* the pitch that devices of today give */
    COUNTED(MEMORY, rounded && height > SIZE_MAX / rounded ? SIZE_MAX : rounded * height, context(), *at,
            driver(at, pitch, width, height, element));
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags) {
    DRIVER(MemAllocManaged, CUresult(*)(CUdeviceptr *, size_t, unsigned));
    NEED(driver);
    COUNTED(MEMORY, bytes, context(), *at, driver(at, bytes, flags));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
    DRIVER(MemFree, CUresult(*)(CUdeviceptr));
    NEED(driver);
    UNCOUNTED(memory_give, MEMORY, at, driver(at));
}

#define IN_STREAM(suffix)                                                                                              \
    EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *at, size_t bytes, CUstream stream) {                          \
        DRIVER(MemAllocAsync##suffix, CUresult(*)(CUdeviceptr *, size_t, CUstream));                                   \
        NEED(driver);                                                                                                  \
        if (share_limits())                                                                                            \
            pool_used(NULL);                                                                                           \
        COUNTED(MEMORY, bytes, context(), *at, driver(at, bytes, stream));                                             \
    }                                                                                                                  \
    EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream) {\
        DRIVER(MemAllocFromPoolAsync##suffix, CUresult(*)(CUdeviceptr *, size_t, CUmemoryPool, CUstream));             \
        NEED(driver);                                                                                                  \
        if (share_limits())                                                                                            \
            pool_used(pool);                                                                                           \
        COUNTED(MEMORY, bytes, context(), *at, driver(at, bytes, pool, stream));                                       \
    }                                                                                                                  \
    EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr at, CUstream stream) {                                          \
        DRIVER(MemFreeAsync##suffix, CUresult(*)(CUdeviceptr, CUstream));                                              \
        NEED(driver);                                                                                                  \
        UNCOUNTED(pool_freed, MEMORY, at, driver(at, stream));                                                         \
    }

IN_STREAM()
IN_STREAM(_ptsz)

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    DRIVER(MemPoolDestroy, CUresult(*)(CUmemoryPool));
    NEED(driver);
    CUresult status = driver(pool);
    if (status == CUDA_SUCCESS)
        pool_gone(pool);
    return status;
}

/* Physical memory: it is there until its handle is released and its last mapping is gone. */
EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
    DRIVER(MemCreate, CUresult(*)(CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long));
    NEED(driver);
    if (!prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return driver(handle, bytes, prop, flags);
    COUNTED(HANDLE, bytes, NULL, *handle, driver(handle, bytes, prop, flags));
}

EXPORT CUresult cuMemRelease(CUhandle handle) {
    DRIVER(MemRelease, CUresult(*)(CUhandle));
    NEED(driver);
    UNCOUNTED(memory_give, HANDLE, handle, driver(handle));
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags) {
    DRIVER(MemMap, CUresult(*)(CUdeviceptr, size_t, size_t, CUhandle, unsigned long long));
    NEED(driver);
    CUresult status = driver(at, bytes, offset, handle, flags);
    if (status == CUDA_SUCCESS && share_limits() && size_keep(HANDLE, handle))
        size_put(MAPPING, at, handle, NULL);
    return status;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    DRIVER(MemUnmap, CUresult(*)(CUdeviceptr, size_t));
    NEED(driver);
    CUresult status = driver(at, bytes);
    if (status == CUDA_SUCCESS)
        memory_give(size_unmap(at, bytes));
    return status;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *at) {
    DRIVER(MemRetain, CUresult(*)(CUhandle *, void *));
    NEED(driver);
    CUresult status = driver(handle, at);
    if (status == CUDA_SUCCESS)
        size_keep(HANDLE, *handle);
    return status;
}

/* Arrays: at most 4 bytes for each channel of an element. */
static uint64_t array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels) {
    uint64_t each = format == 0x01 || format == 0x08 ? 1 : format == 0x02 || format == 0x09 || format == 0x10 ? 2 : 4;
    unsigned __int128 all = (unsigned __int128)width * (height ? height : 1);
    if (all > UINT64_MAX)
        return UINT64_MAX;
    all = all * (depth ? depth : 1);
    if (all > UINT64_MAX)
        return UINT64_MAX;
    all = all * each * (channels ? channels : 1);
    return all > UINT64_MAX ? UINT64_MAX : (uint64_t)all;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    DRIVER(ArrayCreate, CUresult(*)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *));
    NEED(driver);
    if (!d)
        return driver(array, d);
    COUNTED(ARRAY, array_bytes(d->Width, d->Height, 1, d->Format, d->NumChannels), context(), *array, driver(array, d));
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    DRIVER(Array3DCreate, CUresult(*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *));
    NEED(driver);
    if (!d)
        return driver(array, d);
    COUNTED(ARRAY, array_bytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels), context(), *array,
            driver(array, d));
}

EXPORT CUresult cuArrayDestroy(CUarray array) {
    DRIVER(ArrayDestroy, CUresult(*)(CUarray));
    NEED(driver);
    UNCOUNTED(memory_give, ARRAY, array, driver(array));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    DRIVER(MipmappedCreate, CUresult(*)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned));
    NEED(driver);
    if (!d)
        return driver(array, d, levels);
    uint64_t first = array_bytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels);
    uint64_t all = levels > 1 && first < UINT64_MAX / 2 ? first * 2 : first; /* each level at most half of the last */
    COUNTED(ARRAY, all, context(), *array, driver(array, d, levels));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    DRIVER(MipmappedDestroy, CUresult(*)(CUmipmappedArray));
    NEED(driver);
    UNCOUNTED(memory_give, ARRAY, array, driver(array));
}

/* Memory of a graph is counted from the node on until the graph is destroyed. */
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    DRIVER(GraphAddMemAlloc,
           CUresult(*)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *));
    NEED(driver);
    if (!p)
        return driver(node, graph, after, count, p);
    COUNTED(OF_GRAPH, p->bytesize, graph, p->dptr, driver(node, graph, after, count, p));
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    DRIVER(GraphDestroy, CUresult(*)(CUgraph));
    NEED(driver);
    CUresult status = driver(graph);
    if (status == CUDA_SUCCESS)
        memory_give(size_drop_owner(graph));
    return status;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total) {
    DRIVER(MemGetInfo, CUresult(*)(size_t *, size_t *));
    NEED(driver);
    CUresult status = driver(left, total);
    uint64_t limit, used;
    if (status == CUDA_SUCCESS && memory_capped(&limit, &used)) {
        uint64_t rest = limit > used ? limit - used : 0;
        *left = *left < rest ? *left : rest;
        *total = *total < limit ? *total : limit;
    }
    return status;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    DRIVER(DeviceTotalMem, CUresult(*)(size_t *, CUdevice));
    NEED(driver);
    CUresult status = driver(bytes, device);
    uint64_t limit, used;
    if (status == CUDA_SUCCESS && memory_capped(&limit, &used) && limit < *bytes)
        *bytes = limit;
    return status;
}

/* Contexts: their memory goes with them ------------------------------------------------------------------------------ */

/* A process with a context is on the GPU: it has an entry, which counts the context, and the arbiter knows of it. */
static CUresult on_gpu(CUresult status) {
    if (status == CUDA_SUCCESS)
        share_entry();
    return status;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device) {
    DRIVER(CtxCreate, CUresult(*)(CUcontext *, unsigned, CUdevice));
    NEED(driver);
    return on_gpu(driver(made, flags, device));
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *made, void *affinities, int count, unsigned flags, CUdevice device) {
    DRIVER(CtxCreate_v3, CUresult(*)(CUcontext *, void *, int, unsigned, CUdevice));
    NEED(driver);
    return on_gpu(driver(made, affinities, count, flags, device));
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *made, void *parameters, unsigned flags, CUdevice device) {
    DRIVER(CtxCreate_v4, CUresult(*)(CUcontext *, void *, unsigned, CUdevice));
    NEED(driver);
    return on_gpu(driver(made, parameters, flags, device));
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    DRIVER(PrimaryRetain, CUresult(*)(CUcontext *, CUdevice));
    NEED(driver);
    return on_gpu(driver(made, device));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext which) {
    DRIVER(CtxDestroy, CUresult(*)(CUcontext));
    NEED(driver);
    gate_context_ends(which);
    CUresult status = driver(which);
    if (status == CUDA_SUCCESS)
        memory_give(size_drop_owner(which));
    return status;
}

/* The primary context of a device, if it is in use; asked for without keeping it. */
static void *primary(CUdevice device, CUresult (*release)(CUdevice)) {
    static CUresult (*retain)(CUcontext *, CUdevice);
    CUcontext found = NULL;
    if (!retain)
        retain = (CUresult(*)(CUcontext *, CUdevice))resolve_symbol("cuDevicePrimaryCtxRetain");
    if (retain && retain(&found, device) == CUDA_SUCCESS)
        release(device);
    return found;
}

static bool active(CUdevice device) {
    static CUresult (*state)(CUdevice, unsigned *, int *);
    unsigned flags;
    int on = 1;
    if (!state)
        state = (CUresult(*)(CUdevice, unsigned *, int *))resolve_symbol("cuDevicePrimaryCtxGetState");
    return !state || state(device, &flags, &on) != CUDA_SUCCESS || on;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    DRIVER(PrimaryRelease, CUresult(*)(CUdevice));
    NEED(driver);
    void *which = share_limits() && active(device) ? primary(device, driver) : NULL;
    CUresult status = driver(device);
    if (status == CUDA_SUCCESS && which && !active(device)) {
        gate_context_ends(which);
        memory_give(size_drop_owner(which));
    }
    return status;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    DRIVER(PrimaryReset, CUresult(*)(CUdevice));
    DRIVER_OF(PrimaryRelease, release, CUresult(*)(CUdevice));
    NEED(driver);
    void *which = share_limits() && release && active(device) ? primary(device, release) : NULL;
    gate_context_ends(which);
    CUresult status = driver(device);
    if (status == CUDA_SUCCESS && which)
        memory_give(size_drop_owner(which));
    return status;
}

/* By name ------------------------------------------------------------------------------------------------------------ */

static void substitute(const char *name, void **call, int version, uint64_t flags, bool per_thread) {
    if (!share_wanted() || !name || !call || !*call)
        return;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        per_thread = true;
    else if (flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM)
        per_thread = false;
    *call = resolve_substitute(name, version, per_thread, *call);
}

#define BY_NAME(suffix, per_thread)                                                                                    \
    EXPORT CUresult cuGetProcAddress##suffix(const char *name, void **call, int version, uint64_t flags) {             \
        DRIVER(GetProcAddress##suffix, CUresult(*)(const char *, void **, int, uint64_t));                             \
        NEED(driver);                                                                                                  \
        CUresult status = driver(name, call, version, flags);                                                          \
        if (status == CUDA_SUCCESS)                                                                                    \
            substitute(name, call, version, flags, per_thread);                                                        \
        return status;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult cuGetProcAddress_v2##suffix(const char *name, void **call, int version, uint64_t flags,            \
                                                int *found) {                                                          \
        DRIVER(GetProcAddress_v2##suffix, CUresult(*)(const char *, void **, int, uint64_t, int *));                   \
        NEED(driver);                                                                                                  \
        CUresult status = driver(name, call, version, flags, found);                                                   \
        if (status == CUDA_SUCCESS)                                                                                    \
            substitute(name, call, version, flags, per_thread);                                                        \
        return status;                                                                                                 \
    }

BY_NAME(, false)
BY_NAME(_ptsz, true)

#define X(id, symbol, name, since, variant) extern char ours_##id[] __asm__(symbol) __attribute__((visibility("default")));
#include "calls.h"
#undef X

void *resolve_ours(enum hooked which) {
    static void *const ours[] = {
#define X(id, symbol, name, since, variant) ours_##id,
#include "calls.h"
#undef X
    };
    return ours[which];
}
