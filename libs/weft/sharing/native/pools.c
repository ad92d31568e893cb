/* Memory that the driver's pools keep after it was freed: it is on the device, so it counts.
 *
 * A free in a stream moves bytes from what the process holds to what its pools keep. What they keep is asked of the
 * driver again at each allocation and now and then; under pressure it is given back to the device. */
#include "hook.h"

#define POOLS 16

typedef CUresult (*attribute_t)(CUmemoryPool, int, void *);
typedef CUresult (*trim_t)(CUmemoryPool, size_t);
typedef CUresult (*pool_of_device_t)(CUmemoryPool *, CUdevice);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool pools[POOLS];
static int count;
static uint64_t kept; /* bytes that are counted in the entry for the pools */

static void *_Atomic attribute_call, *_Atomic trim_call, *_Atomic own_call;

static attribute_t attribute(void) {
    if (!attribute_call)
        attribute_call = resolve_symbol("cuMemPoolGetAttribute");
    return (attribute_t)attribute_call;
}

/* A pool that this process allocates from; NULL: its device's own. */
void pool_used(CUmemoryPool pool) {
    const struct driver *driver = resolve_internal();
    CUdevice device;
    attribute(); /* here: the arbiter's thread must not wait for a library that is being loaded */
    if (!pool) {
        if (!own_call)
            own_call = resolve_symbol("cuDeviceGetMemPool");
        pool_of_device_t own = (pool_of_device_t)own_call;
        if (!driver || !own || driver->device(&device) != CUDA_SUCCESS || own(&pool, device) != CUDA_SUCCESS)
            return;
    }
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < count && pools[at] != pool)
        at++;
    if (at == count && count < POOLS)
        pools[count++] = pool;
    pthread_mutex_unlock(&lock);
}

void pool_gone(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count; at++)
        if (pools[at] == pool)
            pools[at--] = pools[--count];
    pthread_mutex_unlock(&lock);
    pools_refresh();
}

/* Count what the pools keep now, instead of what they kept. */
void pools_refresh(void) {
    uint64_t now = 0;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count && attribute(); at++) {
        uint64_t reserved = 0, used = 0;
        if (attribute()(pools[at], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS &&
            attribute()(pools[at], CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS && reserved > used)
            now += reserved - used;
    }
    if (now > kept)
        memory_add(now - kept);
    else
        memory_give(kept - now);
    kept = now;
    pthread_mutex_unlock(&lock);
}

/* Give what they keep back to the device; true if there is less now. */
bool pools_trim(void) {
    if (!trim_call)
        trim_call = resolve_symbol("cuMemPoolTrimTo");
    pthread_mutex_lock(&lock);
    uint64_t before = kept;
    for (int at = 0; at < count && trim_call; at++)
        ((trim_t)trim_call)(pools[at], 0);
    pthread_mutex_unlock(&lock);
    pools_refresh();
    return kept < before;
}

/* Freed in a stream: until the driver is asked again, a pool has it. */
void pool_freed(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    bool known = count && attribute();
    if (known)
        kept += bytes;
    pthread_mutex_unlock(&lock);
    if (!known)
        memory_give(bytes);
}

uint64_t pools_kept(void) { return kept; }

void pools_forget(void) {
    pthread_mutex_init(&lock, NULL);
    count = 0;
    kept = 0;
}
