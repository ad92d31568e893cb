/* How many bytes each address, array and handle of this process stands for. */
#include "hook.h"

#include <stdlib.h>
#include <string.h>

enum { EMPTY, FULL, GONE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct size *table;
static size_t capacity, filled; /* filled: full or gone */

static size_t place(uint64_t key, enum kind kind) {
    uint64_t hash = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15ull;
    return (size_t)(hash >> 20) & (capacity - 1);
}

static struct size *find(enum kind kind, uint64_t key) {
    if (!capacity)
        return NULL;
    for (size_t at = place(key, kind);; at = (at + 1) & (capacity - 1)) {
        struct size *size = &table[at];
        if (size->state == EMPTY)
            return NULL;
        if (size->state == FULL && size->key == key && size->kind == kind)
            return size;
    }
}

static void insert(struct size entry) {
    size_t at = place(entry.key, (enum kind)entry.kind);
    while (table[at].state == FULL)
        at = (at + 1) & (capacity - 1);
    filled += table[at].state == EMPTY;
    table[at] = entry;
}

static bool grow(void) {
    struct size *before = table;
    size_t count = capacity, full = 0;
    for (size_t at = 0; at < count; at++)
        full += before[at].state == FULL;
    size_t wanted = full * 4 < 1024 ? 1024 : capacity * (full * 4 > capacity ? 2 : 1);
    struct size *fresh = calloc(wanted, sizeof *fresh);
    if (!fresh)
        return false;
    table = fresh;
    capacity = wanted;
    filled = 0;
    for (size_t at = 0; at < count; at++)
        if (before[at].state == FULL)
            insert(before[at]);
    free(before);
    return true;
}

static uint64_t drop(struct size *size) {
    if (--size->references > 0)
        return 0;
    size->state = GONE;
    return size->bytes;
}

bool size_put(enum kind kind, uint64_t key, uint64_t bytes, void *owner) {
    pthread_mutex_lock(&lock);
    struct size *known = find(kind, key);
    bool room = known || (filled + 1) * 2 <= capacity || grow();
    struct size entry = {key, bytes, owner, 1, (uint8_t)kind, FULL};
    if (known)
        *known = entry;
    else if (room)
        insert(entry);
    pthread_mutex_unlock(&lock);
    return room;
}

uint64_t size_drop(enum kind kind, uint64_t key) {
    pthread_mutex_lock(&lock);
    struct size *size = find(kind, key);
    uint64_t freed = size ? drop(size) : 0;
    pthread_mutex_unlock(&lock);
    return freed;
}

bool size_keep(enum kind kind, uint64_t key) {
    pthread_mutex_lock(&lock);
    struct size *size = find(kind, key);
    if (size)
        size->references++;
    pthread_mutex_unlock(&lock);
    return size != NULL;
}

uint64_t size_drop_owner(void *owner) {
    uint64_t freed = 0;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < capacity; at++)
        if (table[at].state == FULL && table[at].owner == owner && owner) {
            table[at].state = GONE;
            freed += table[at].bytes;
        }
    pthread_mutex_unlock(&lock);
    return freed;
}

uint64_t size_unmap(uint64_t from, uint64_t bytes) {
    uint64_t freed = 0;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < capacity; at++) {
        struct size *mapping = &table[at];
        if (mapping->state != FULL || mapping->kind != MAPPING || mapping->key - from >= bytes)
            continue;
        mapping->state = GONE;
        struct size *handle = find(HANDLE, mapping->bytes);
        freed += handle ? drop(handle) : 0;
    }
    pthread_mutex_unlock(&lock);
    return freed;
}

uint64_t sizes_total(void) {
    uint64_t total = 0;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < capacity; at++)
        if (table[at].state == FULL && table[at].kind != MAPPING)
            total += table[at].bytes;
    pthread_mutex_unlock(&lock);
    return total;
}

void sizes_forget(void) {
    pthread_mutex_init(&lock, NULL);
    table = NULL; /* after a fork: the parent's */
    capacity = filled = 0;
}
