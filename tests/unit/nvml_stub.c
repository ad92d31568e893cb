/* The few functions of NVIDIA's driver library that a test needs: two GPUs, the first of which may get lost.

   STUB_LOST_AFTER=N: after N calls about the first GPU each further one says that it is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, GPU_IS_LOST = 15 };

typedef struct { int index; long calls; } *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;

static struct { int index; long calls; } devices[2] = {{0, 0}, {1, 0}};
static long lost_after = -1;

int weft_is_fake = 1;

static int state(Device device)
{
    if (device->index == 0 && lost_after >= 0 && device->calls++ >= lost_after)
        return GPU_IS_LOST;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    const char *words = getenv("STUB_LOST_AFTER");
    lost_after = words ? atol(words) : -1;
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device *device)
{
    if (index > 1)
        return INVALID_ARGUMENT;
    *device = (Device)&devices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "GPU-stub-%d", device->index);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    for (unsigned int index = 0; index < 2; index++) {
        char own[32];
        nvmlDeviceGetUUID((Device)&devices[index], own, sizeof own);
        if (strcmp(own, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(Device device, char *name, unsigned int length)
{
    snprintf(name, length, "Stub GPU");
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *rates)
{
    rates->gpu = 40 + device->index;
    rates->memory = 10;
    return state(device);
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    memory->total = 16ULL << 30;
    memory->used = (3ULL + device->index) << 30;
    memory->free = memory->total - memory->used;
    return state(device);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned int *milliwatts)
{
    *milliwatts = 123456;
    return state(device);
}
