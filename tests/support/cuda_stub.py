"""A libcuda.so.1 in C for machines without a GPU: the driver's functions, and our two kernels done by the CPU.

It takes a kernel's name from the PTX it is given and does what the PTX says with `fmaf`, so that results can be checked
to the bit. Variables make it fail: STUB_FAILS=cuMemAlloc_v2:2, STUB_GPUS=0, STUB_WRONG=1 (one bit
of the arithmetic), STUB_FREE=bytes, STUB_LOSES=1.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fails(const char *name) {
    const char *said = getenv("STUB_FAILS");
    size_t length = strlen(name);
    return said && !strncmp(said, name, length) && said[length] == ':' ? atoi(said + length + 1) : 0;
}
#define CALLED do { int code = fails(__func__); if (code) return code; } while (0)
static long number(const char *name, long otherwise) {
    const char *said = getenv(name);
    return said ? atol(said) : otherwise;
}

int cuInit(unsigned flags) { CALLED; return flags; }
int cuDriverGetVersion(int *version) { CALLED; *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { CALLED; *count = number("STUB_GPUS", 1); return 0; }
int cuDeviceGet(int *device, int ordinal) {
    CALLED; *device = 7 + ordinal; return ordinal < number("STUB_GPUS", 1) ? 0 : 101;
}
int cuDeviceGetName(char *name, int size, int device) {
    CALLED; snprintf(name, size, "Stub"); return device >= 7 ? 0 : 101;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    CALLED; memset(uuid, 0xab, 16); uuid[15] += device - 7; return device >= 7 ? 0 : 101;
}
int cuDeviceGetAttribute(int *value, int which, int device) { CALLED; *value = which == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { CALLED; *context = (void *)(device - 6L); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { CALLED; return 0; }
static void *current;
int cuCtxSetCurrent(void *context) { CALLED; current = context; return context ? 0 : 201; }
int cuCtxSynchronize(void) { CALLED; return 0; }
int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values) {
    int code = fails(__func__);
    if (code) {
        for (unsigned i = 0; i < count; i++)
            if (options[i] == 5) snprintf(values[i], 4096, "ptxas error: line 1:\n  not for this chip");
        return code;
    }
    *module = (void *)text;
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    CALLED;
    char entry[100];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (!strstr(module, entry)) return 500;
    *function = (void *)(strcmp(name, "weft_fma") ? 2L : 1L);
    return 0;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CALLED;
    *free_bytes = *total = number("STUB_FREE", 1L << 30);
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    CALLED;
    *address = (uint64_t)calloc(1, size);
    return *address ? 0 : 2;
}
int cuMemFree_v2(uint64_t address) { CALLED; free((void *)address); return 0; }
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) {
    CALLED;
    for (size_t i = 0; i < count; i++) ((uint32_t *)address)[i] = value;
    return 0;
}
int cuMemAllocHost_v2(void **address, size_t size) { CALLED; *address = calloc(1, size); return *address ? 0 : 2; }
int cuMemcpyHtoD_v2(uint64_t to, void *from, size_t size) { CALLED; memcpy((void *)to, from, size); return 0; }
int cuDeviceCanAccessPeer(int *able, int device, int peer) { CALLED; *able = device != peer; return 0; }
int cuCtxEnablePeerAccess(void *peer, unsigned flags) { CALLED; return peer == current ? 704 : (int)flags; }
int cuMemcpyPeerAsync(uint64_t to, void *there, uint64_t from, void *here, size_t size, void *stream) {
    CALLED;
    if (here != current || stream) return 1;
    if (getenv("STUB_LOSES") && there == (void *)1) return 0;
    memcpy((void *)to, (void *)from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { CALLED; memcpy(to, (void *)from, size); return 0; }

static void fma_kernel(unsigned threads, void **arguments) {
    float *sums = (float *)*(uint64_t *)arguments[0], c = *(float *)arguments[1];
    unsigned rounds = *(unsigned *)arguments[2];
    for (unsigned number = 0; number < threads; number++) {
        float sum = 0;
        for (int chain = 0; chain < 8; chain++) {
            float x = fmaf((float)number, 0x1p-25f, (chain + 1) / 16.0f);
            for (unsigned step = 0; step < rounds * 8; step++) x = fmaf(x, x, c);
            sum = chain ? sum + x : x;
        }
        if (getenv("STUB_WRONG")) ((uint32_t *)&sum)[0] ^= 1;
        sums[number] = sum;
    }
}
static void triad_kernel(unsigned threads, void **arguments) {
    float *a = (float *)*(uint64_t *)arguments[0], *b = (float *)*(uint64_t *)arguments[1];
    float *c = (float *)*(uint64_t *)arguments[2], scale = *(float *)arguments[3];
    unsigned quads = *(unsigned *)arguments[4];
    for (unsigned number = 0; number < threads && number < quads; number++)
        for (int i = 0; i < 4; i++) a[4 * number + i] = fmaf(scale, c[4 * number + i], b[4 * number + i]);
}
int cuLaunchKernel(void *kernel, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    CALLED;
    if (by != 1 || bz != 1 || ty != 1 || tz != 1 || shared || stream || extra) return 1;
    (kernel == (void *)1 ? fma_kernel : triad_kernel)(bx * tx, arguments);
    return 0;
}

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
int cuEventCreate(double **event, unsigned flags) { CALLED; *event = calloc(1, sizeof(double)); return flags; }
int cuEventRecord(double *event, void *stream) { CALLED; *event = now(); return stream != 0; }
int cuEventSynchronize(double *event) { CALLED; return *event == 0; }
int cuEventElapsedTime(float *milliseconds, double *from, double *to) {
    CALLED;
    *milliseconds = 1000 * (*to - *from);
    return 0;
}
int cuEventDestroy_v2(double *event) { CALLED; free(event); return 0; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STUB";
    return 0;
}
int cuGetErrorString(int code, const char **words) {
    *words = code == 2 ? "out of memory" : "as the stub was told";
    return 0;
}
"""


def build(folder: Path, *, without: str = "") -> Path:
    """The folder to search for libraries. `without`: a function that an old driver does not have."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to build a stand-in for the driver with")
    source = SOURCE.replace(f"int {without}(", f"int not_{without}(") if without else SOURCE
    path = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O2", "-ffp-contract=off", "-x", "c", "-", "-o", str(path), "-lm"]
    subprocess.run(command, input=source.encode(), check=True, env=dict(os.environ))
    return folder
