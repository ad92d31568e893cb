/* Copies and sets of the emulated driver: real, after everything queued, as the legacy stream would. They take no device
 * time. */
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

static CUresult move(void *to, const void *from, size_t bytes) {
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    emulated_drain(emulated_current());
    memmove(to, from, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { return move((void *)to, from, bytes); }
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { return move(to, (void *)from, bytes); }
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return move((void *)to, (void *)from, bytes);
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static void do_copy(void *argument) {
    struct copy *copy = argument;
    memmove(copy->to, copy->from, copy->bytes);
    free(copy);
}

static CUresult move_in_stream(void *to, const void *from, size_t bytes, CUstream handle, bool per_thread) {
    struct emulated_stream *stream = emulated_stream(handle, per_thread);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capturing)
        return CUDA_SUCCESS; /* a graph's copies are not emulated */
    struct copy *copy = malloc(sizeof *copy);
    *copy = (struct copy){to, from, bytes};
    emulated_call(stream->device, stream, do_copy, copy);
    return CUDA_SUCCESS;
}

#define COPIES(suffix, per_thread)                                                                                     \
    EXPORT CUresult cuMemcpyHtoDAsync_v2##suffix(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {    \
        return move_in_stream((void *)to, from, bytes, stream, per_thread);                                            \
    }                                                                                                                  \
    EXPORT CUresult cuMemcpyDtoHAsync_v2##suffix(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {          \
        return move_in_stream(to, (void *)from, bytes, stream, per_thread);                                            \
    }                                                                                                                  \
    EXPORT CUresult cuMemcpyDtoDAsync_v2##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {    \
        return move_in_stream((void *)to, (void *)from, bytes, stream, per_thread);                                    \
    }

COPIES(, false)
COPIES(_ptsz, true)

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    emulated_drain(emulated_current());
    memset((void *)to, value, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    emulated_drain(emulated_current());
    for (size_t at = 0; at < count; at++)
        ((unsigned *)to)[at] = value;
    return CUDA_SUCCESS;
}
