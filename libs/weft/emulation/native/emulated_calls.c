/* The calls of the emulated driver: captures, graphs, errors, and how a program asks for a call by its name. */
#define _GNU_SOURCE
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

uint64_t emulated_kernel_ns(CUfunction function, unsigned blocks, void **parameters);

/* Captures: one stream at a time can be captured. --------------------------------------------------------------------- */

static struct emulated_stream *_Atomic captured;
static __thread int mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool emulated_unsafe(void) {
    struct emulated_stream *stream = captured;
    if (!stream || mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    bool mine = pthread_equal(stream->captured_by, pthread_self());
    bool others = stream->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode_of_thread == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (stream->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !(mine || others))
        return false;
    stream->invalid = true;
    return true;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    struct emulated_stream *stream = emulated_stream(handle, false), *none = NULL;
    if (!stream || stream->default_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!atomic_compare_exchange_strong(&captured, &none, stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    stream->graph = calloc(1, sizeof *stream->graph);
    stream->capture_mode = mode;
    stream->captured_by = pthread_self();
    stream->invalid = false;
    stream->capturing = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    struct emulated_stream *stream = emulated_stream(handle, false);
    if (!stream || !stream->capturing)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    stream->capturing = false;
    captured = NULL;
    *graph = stream->invalid ? NULL : stream->graph;
    return stream->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    struct emulated_stream *stream = emulated_stream(handle, false);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->default_stream && captured)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !stream->capturing ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->invalid  ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream ? stream : CU_STREAM_PER_THREAD, status);
}

/* Graphs: how long they take is all they are. ------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, sizeof(struct emulated_graph));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS *wanted) {
    (void)after, (void)count;
    ((struct emulated_graph *)graph)->ns += emulated_kernel_ns(wanted->func, wanted->gridDimX, wanted->kernelParams);
    *node = graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    struct emulated_graph *copy = malloc(sizeof *copy);
    *copy = *(struct emulated_graph *)graph;
    *exec = copy;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    if (emulated_current())
        emulated_free_all(emulated_current(), graph);
    free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool per_thread) {
    struct emulated_stream *stream = emulated_stream(handle, per_thread);
    if (!stream || !exec)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capturing)
        stream->graph->ns += ((struct emulated_graph *)exec)->ns;
    else
        emulated_launch(stream->device, stream, ((struct emulated_graph *)exec)->ns);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(exec, stream, false); }
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return launch(exec, stream, true); }

/* Errors --------------------------------------------------------------------------------------------------------------- */

static const struct {
    CUresult status;
    const char *name, *words;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

EXPORT CUresult cuGetErrorName(CUresult status, const char **name) {
    for (size_t at = 0; at < sizeof errors / sizeof *errors; at++)
        if (errors[at].status == status) {
            *name = errors[at].name;
            return CUDA_SUCCESS;
        }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult status, const char **words) {
    for (size_t at = 0; at < sizeof errors / sizeof *errors; at++)
        if (errors[at].status == status) {
            *words = errors[at].words;
            return CUDA_SUCCESS;
        }
    *words = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* By name -------------------------------------------------------------------------------------------------------------- */

#define NAMES(X)                                                                                                       \
    X(cuInit, cuInit, ) X(cuDriverGetVersion, cuDriverGetVersion, ) X(cuDeviceGetCount, cuDeviceGetCount, )            \
    X(cuDeviceGet, cuDeviceGet, ) X(cuDeviceGetName, cuDeviceGetName, ) X(cuDeviceGetUuid, cuDeviceGetUuid_v2, )       \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, ) X(cuDeviceGetAttribute, cuDeviceGetAttribute, )                         \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, )                                                            \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, )                                                       \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, )                                                           \
    X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, )                                                     \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, ) X(cuCtxDestroy, cuCtxDestroy_v2, )                     \
    X(cuCtxSetCurrent, cuCtxSetCurrent, ) X(cuCtxGetCurrent, cuCtxGetCurrent, )                                        \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, ) X(cuCtxPopCurrent, cuCtxPopCurrent_v2, )                                \
    X(cuCtxGetDevice, cuCtxGetDevice, ) X(cuCtxSynchronize, cuCtxSynchronize, )                                        \
    X(cuModuleLoadData, cuModuleLoadData, ) X(cuModuleLoadDataEx, cuModuleLoadDataEx, )                                \
    X(cuModuleUnload, cuModuleUnload, ) X(cuModuleGetFunction, cuModuleGetFunction, )                                  \
    X(cuStreamCreate, cuStreamCreate, ) X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, )                    \
    X(cuStreamDestroy, cuStreamDestroy_v2, ) X(cuStreamSynchronize, cuStreamSynchronize, _ptsz)                        \
    X(cuStreamQuery, cuStreamQuery, ) X(cuStreamWaitEvent, cuStreamWaitEvent, )                                        \
    X(cuLaunchKernel, cuLaunchKernel, _ptsz) X(cuLaunchKernelEx, cuLaunchKernelEx, _ptsz)                              \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, _ptsz) X(cuLaunchHostFunc, cuLaunchHostFunc, _ptsz)        \
    X(cuEventCreate, cuEventCreate, ) X(cuEventDestroy, cuEventDestroy_v2, ) X(cuEventRecord, cuEventRecord, _ptsz)    \
    X(cuEventQuery, cuEventQuery, ) X(cuEventSynchronize, cuEventSynchronize, )                                        \
    X(cuEventElapsedTime, cuEventElapsedTime, )                                                                        \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, )                                          \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, ) X(cuStreamEndCapture, cuStreamEndCapture, )                     \
    X(cuStreamIsCapturing, cuStreamIsCapturing, _ptsz) X(cuGraphCreate, cuGraphCreate, )                               \
    X(cuGraphAddKernelNode, cuGraphAddKernelNode_v2, ) X(cuGraphInstantiate, cuGraphInstantiateWithFlags, )            \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, ) X(cuGraphDestroy, cuGraphDestroy, )                  \
    X(cuGraphExecDestroy, cuGraphExecDestroy, ) X(cuGraphLaunch, cuGraphLaunch, _ptsz)                                 \
    X(cuDeviceGetMemPool, cuDeviceGetMemPool, ) X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, )                      \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, ) X(cuMemPoolTrimTo, cuMemPoolTrimTo, )                            \
    X(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, ) X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, ) \
    X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, )                                                                \
    X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, )                                                              \
    X(cuGetErrorName, cuGetErrorName, ) X(cuGetErrorString, cuGetErrorString, ) X(cuMemAlloc, cuMemAlloc_v2, )         \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, ) X(cuMemAllocManaged, cuMemAllocManaged, ) X(cuMemFree, cuMemFree_v2, )    \
    X(cuMemAllocAsync, cuMemAllocAsync, _ptsz) X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, _ptsz)              \
    X(cuMemFreeAsync, cuMemFreeAsync, _ptsz) X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, )                 \
    X(cuMemPoolCreate, cuMemPoolCreate, ) X(cuMemPoolDestroy, cuMemPoolDestroy, ) X(cuMemCreate, cuMemCreate, )        \
    X(cuMemRelease, cuMemRelease, ) X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, )                  \
    X(cuMemAddressReserve, cuMemAddressReserve, ) X(cuMemAddressFree, cuMemAddressFree, ) X(cuMemMap, cuMemMap, )      \
    X(cuMemUnmap, cuMemUnmap, ) X(cuMemSetAccess, cuMemSetAccess, ) X(cuArrayCreate, cuArrayCreate_v2, )               \
    X(cuArray3DCreate, cuArray3DCreate_v2, ) X(cuArrayDestroy, cuArrayDestroy, ) X(cuMemGetInfo, cuMemGetInfo_v2, )    \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, ) X(cuMemcpyDtoH, cuMemcpyDtoH_v2, ) X(cuMemcpyDtoD, cuMemcpyDtoD_v2, )           \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, _ptsz) X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, _ptsz)                \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, _ptsz) X(cuMemsetD8, cuMemsetD8_v2, ) X(cuMemsetD32, cuMemsetD32_v2, )

#define SAME(name, call, suffix) extern char name_of_##call[] __asm__(#call), per_thread_##call##suffix[] __asm__(#call #suffix);
NAMES(SAME)

static const struct {
    const char *name;
    void *call, *per_thread;
} calls[] = {
#define ROW(name, call, suffix) {#name, name_of_##call, per_thread_##call##suffix},
    NAMES(ROW)};

CUresult cuGetProcAddress(const char *name, void **call, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *found);

void *emulated_find(const char *name, bool per_thread) {
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++)
        if (strcmp(name, calls[at].name) == 0)
            return per_thread ? calls[at].per_thread : calls[at].call;
    return NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *found) {
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !call)
        return CUDA_ERROR_INVALID_VALUE;
    *call = NULL;
    if (!*name) /* what programs ask first */
        return CUDA_SUCCESS;
    if (strcmp(name, "cuGetProcAddress") == 0)
        *call = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    else
        *call = emulated_find(name, per_thread);
    if (found)
        *found = *call ? 0 : 1;
    return *call ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **call, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, call, version, flags, NULL);
}
