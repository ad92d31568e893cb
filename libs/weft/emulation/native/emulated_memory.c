/* The memory of the emulated driver: counted on the device, and backed by the host's pages as far as they are touched,
 * so that copies and sets are real. */
#define _GNU_SOURCE
#include "emulated.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct block {
    CUdeviceptr at; /* an address, an array, or a handle */
    size_t bytes, mapped;
    void *context;
    struct emulated_device *device;
    int references;
    bool pooled;
    struct block *next;
};

static struct block *blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

static struct block *find(CUdeviceptr at, struct block ***link) {
    for (struct block **here = &blocks; *here; here = &(*here)->next)
        if ((*here)->at == at) {
            if (link)
                *link = here;
            return *here;
        }
    return NULL;
}

static CUresult pool_take(struct emulated_device *device, uint64_t bytes) {
    struct emulated_pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    uint64_t more = pool->used + bytes > pool->reserved ? pool->used + bytes - pool->reserved : 0;
    CUresult status = more ? emulated_take(device, more) : CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) {
        pool->used += bytes;
        pool->reserved += more;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static void pool_trim(struct emulated_device *device, uint64_t freed, uint64_t keep) {
    struct emulated_pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    pool->used -= freed;
    uint64_t kept = pool->used > keep ? pool->used : keep;
    if (pool->reserved > kept) {
        emulated_give(device, pool->reserved - kept);
        pool->reserved = kept;
    }
    pthread_mutex_unlock(&pool->lock);
}

static void drop(struct block **link) {
    struct block *block = *link;
    *link = block->next;
    if (block->mapped)
        munmap((void *)block->at, block->mapped);
    if (block->pooled)
        pool_trim(block->device, block->bytes, block->device->pool.threshold);
    else
        emulated_give(block->device, block->bytes);
    free(block);
}

static CUresult allocate_from(CUdeviceptr *at, size_t bytes, bool pooled) {
    CUcontext context = NULL;
    struct emulated_device *device = emulated_current();
    CUresult cuCtxGetCurrent(CUcontext *);
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes || !at)
        return CUDA_ERROR_INVALID_VALUE;
    if (emulated_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    cuCtxGetCurrent(&context);
    CUresult status = pooled ? pool_take(device, bytes) : emulated_take(device, bytes);
    if (status)
        return status;
    void *pages = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct block *block = pages == MAP_FAILED ? NULL : malloc(sizeof *block);
    if (!block) {
        if (pooled)
            pool_trim(device, bytes, device->pool.threshold);
        else
            emulated_give(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *block = (struct block){(CUdeviceptr)pages, bytes, whole_pages(bytes), context, device, 1, pooled, NULL};
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    *at = block->at;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *at, size_t bytes) { return allocate_from(at, bytes, false); }

static CUresult release(CUdeviceptr at) {
    struct block **link;
    pthread_mutex_lock(&lock);
    struct block *block = find(at, &link);
    if (block && --block->references == 0)
        drop(link);
    pthread_mutex_unlock(&lock);
    return block || !at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void emulated_free_all(struct emulated_device *device, void *context) {
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link;)
        if ((*link)->device == device && (*link)->context == context)
            drop(link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) { return allocate(at, bytes); }

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 511) & ~(size_t)511;
    return allocate(at, *pitch * height);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate(at, bytes);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
    if (emulated_current())
        emulated_drain(emulated_current());
    return release(at);
}

/* Released at once and not in the stream's order: nothing reads it there. */
#define IN_STREAM(suffix)                                                                                              \
    EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *at, size_t bytes, CUstream stream) {                          \
        (void)stream;                                                                                                  \
        return allocate_from(at, bytes, true);                                                                         \
    }                                                                                                                  \
    EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream) {\
        (void)pool, (void)stream;                                                                                      \
        return allocate_from(at, bytes, true);                                                                         \
    }                                                                                                                  \
    EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr at, CUstream stream) {                                          \
        (void)stream;                                                                                                  \
        return release(at);                                                                                            \
    }

IN_STREAM()
IN_STREAM(_ptsz)

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = emulated_device(device);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int which, void *value) {
    struct emulated_pool *pool = &((struct emulated_device *)handle)->pool;
    pthread_mutex_lock(&pool->lock);
    *(uint64_t *)value = which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                         : which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->used
                                                                       : pool->threshold;
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int which, void *value) {
    if (which != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        return CUDA_ERROR_NOT_SUPPORTED;
    ((struct emulated_device *)handle)->pool.threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    pool_trim(handle, 0, keep);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *wanted) {
    return cuDeviceGetDefaultMemPool(pool, wanted->location.id);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    (void)pool;
    return CUDA_SUCCESS;
}

/* A handle is the address of its pages. Mapping it elsewhere is not emulated beyond the count of references. */
EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUmemAllocationProp *wanted, unsigned long long flags) {
    (void)flags;
    if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return allocate(handle, bytes);
}

EXPORT CUresult cuMemRelease(CUhandle handle) { return release(handle); }

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted, int option) {
    (void)wanted, (void)option;
    *bytes = 2u << 20;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    void *pages = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (CUdeviceptr)pages;
    return pages == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    return munmap((void *)at, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct mapping {
    CUdeviceptr at;
    CUhandle handle;
    struct mapping *next;
};
static struct mapping *mappings;

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags) {
    (void)bytes, (void)offset, (void)flags;
    pthread_mutex_lock(&lock);
    struct block *block = find(handle, NULL);
    struct mapping *mapping = block ? malloc(sizeof *mapping) : NULL;
    if (mapping) {
        block->references++;
        *mapping = (struct mapping){at, handle, mappings};
        mappings = mapping;
    }
    pthread_mutex_unlock(&lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    CUhandle ended[64];
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (struct mapping **link = &mappings; *link && count < 64;) {
        struct mapping *mapping = *link;
        if (mapping->at >= at && mapping->at < at + bytes) {
            ended[count++] = mapping->handle;
            *link = mapping->next;
            free(mapping);
        } else
            link = &mapping->next;
    }
    pthread_mutex_unlock(&lock);
    for (size_t number = 0; number < count; number++)
        release(ended[number]);
    return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *at) {
    pthread_mutex_lock(&lock);
    struct mapping *mapping = mappings;
    while (mapping && mapping->at != (CUdeviceptr)at)
        mapping = mapping->next;
    struct block *block = mapping ? find(mapping->handle, NULL) : NULL;
    if (block) {
        block->references++;
        *handle = block->at;
    }
    pthread_mutex_unlock(&lock);
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The memory of a graph is there from its node on, and goes with the graph. */
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *wanted) {
    (void)after, (void)count;
    CUresult status = allocate(&wanted->dptr, wanted->bytesize);
    struct block *block = NULL;
    pthread_mutex_lock(&lock);
    if (status == CUDA_SUCCESS && (block = find(wanted->dptr, NULL)))
        block->context = graph;
    pthread_mutex_unlock(&lock);
    *node = graph;
    return status;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const void *access, size_t count) {
    (void)at, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

static size_t array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels) {
    size_t each = format == 0x01 || format == 0x08 ? 1 : format == 0x03 || format == 0x0a || format == 0x20 ? 4 : 2;
    return width * (height ? height : 1) * (depth ? depth : 1) * each * channels;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    size_t bytes = array_bytes(wanted->Width, wanted->Height, 1, wanted->Format, wanted->NumChannels);
    return allocate((CUdeviceptr *)array, bytes);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    size_t bytes = array_bytes(wanted->Width, wanted->Height, wanted->Depth, wanted->Format, wanted->NumChannels);
    return allocate((CUdeviceptr *)array, bytes);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels) {
    size_t bytes = 0, width = wanted->Width, height = wanted->Height, depth = wanted->Depth;
    for (; levels && width; levels--, width /= 2, height /= 2, depth /= 2)
        bytes += array_bytes(width, height, depth, wanted->Format, wanted->NumChannels);
    return allocate((CUdeviceptr *)array, bytes);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return release((CUdeviceptr)array); }

EXPORT CUresult cuArrayDestroy(CUarray array) { return release((CUdeviceptr)array); }

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total) {
    struct emulated_device *device = emulated_current();
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    emulated_bury_dead(device->file);
    uint64_t all = atomic_load(&device->file->memory), used = emulated_memory_used(device);
    *total = all;
    *left = used < all ? all - used : 0;
    return CUDA_SUCCESS;
}
