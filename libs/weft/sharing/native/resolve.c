/* Where functions come from: dlsym and dlvsym are ours, so the real ones are read out of the C library's own tables. */
#define _GNU_SOURCE
#include "hook.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

typedef void *(*dlsym_t)(void *, const char *);
typedef void *(*dlvsym_t)(void *, const char *, const char *);

static _Atomic(dlsym_t) real_dlsym;
static _Atomic(dlvsym_t) real_dlvsym;

/* The number of symbols of an object, by its hash tables. */
static uint32_t symbol_count(const uint32_t *hash, const uint32_t *gnu) {
    if (hash)
        return hash[1];
    if (!gnu)
        return 0;
    uint32_t buckets = gnu[0], first = gnu[1], words = gnu[2], last = 0;
    const uint32_t *bucket = gnu + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t at = 0; at < buckets; at++)
        last = bucket[at] > last ? bucket[at] : last;
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *argument) {
    const char *name = info->dlpi_name, *base = name ? strrchr(name, '/') : NULL;
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL, *gnu = NULL;
    (void)size, (void)argument;
    base = base ? base + 1 : name;
    if (!base || (strncmp(base, "libc.so", 7) != 0 && strncmp(base, "libdl.so.", 9) != 0 &&
                  strncmp(base, "ld-musl-", 8) != 0)) /* musl's loader is its C library */
        return 0;
    for (int at = 0; at < info->dlpi_phnum; at++)
        if (info->dlpi_phdr[at].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[at].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        ElfW(Addr) at = dynamic->d_un.d_ptr;
        at += at < info->dlpi_addr ? info->dlpi_addr : 0; /* some systems leave them relative */
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const void *)at;
        else if (dynamic->d_tag == DT_HASH)
            hash = (const void *)at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            gnu = (const void *)at;
    }
    if (!symbols || !strings)
        return 0;
    for (uint32_t at = 0, count = symbol_count(hash, gnu); at < count; at++) {
        const ElfW(Sym) *symbol = &symbols[at];
        if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
            continue;
        void *found = (void *)(info->dlpi_addr + symbol->st_value);
        if (strcmp(strings + symbol->st_name, "dlsym") == 0)
            atomic_store(&real_dlsym, (dlsym_t)found);
        else if (strcmp(strings + symbol->st_name, "dlvsym") == 0)
            atomic_store(&real_dlvsym, (dlvsym_t)found);
    }
    return 0;
}

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version) {
    (void)handle, (void)name, (void)version;
    return NULL;
}

static void find_real(void) {
    dl_iterate_phdr(look_into, NULL);
    dlsym_t none = NULL;
    dlvsym_t none_versioned = NULL;
    atomic_compare_exchange_strong(&real_dlsym, &none, no_dlsym);
    atomic_compare_exchange_strong(&real_dlvsym, &none_versioned, no_dlvsym);
}

static dlsym_t real(void) {
    if (UNLIKELY(!atomic_load_explicit(&real_dlsym, memory_order_acquire)))
        find_real();
    return atomic_load(&real_dlsym);
}

/* The driver's functions --------------------------------------------------------------------------------------------- */

static const struct {
    const char *symbol, *name;
    int since;
    bool per_thread;
} hooks[] = {
#define X(id, symbol, name, since, variant) {symbol, name, since, variant},
#include "calls.h"
#undef X
};

static void *_Atomic drivers[HOOKED_COUNT];

static void *library(void) {
    static void *_Atomic handle;
    if (!handle) {
        handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        if (!handle)
            handle = dlopen("libcuda.so", RTLD_LAZY | RTLD_NOLOAD);
    }
    return handle;
}

void *resolve_symbol(const char *symbol) {
    void *handle = library();
    return real()(handle ? handle : RTLD_NEXT, symbol);
}

void *resolve_driver(enum hooked which) {
    void *found = atomic_load_explicit(&drivers[which], memory_order_acquire);
    if (UNLIKELY(!found)) {
        found = resolve_symbol(hooks[which].symbol);
        if (found && found != resolve_ours(which))
            atomic_store_explicit(&drivers[which], found, memory_order_release);
        else
            found = NULL;
    }
    return found;
}

/* Ours in place of `found`. A driver not linked with -Bsymbolic answers with ours: then there is nothing to remember. */
static void *substitute(enum hooked which, void *found) {
    void *ours = resolve_ours(which);
    if (found && found != ours)
        atomic_store_explicit(&drivers[which], found, memory_order_release);
    return ours;
}

/* What a name stands for in this version: the driver's answer tells, where it is one of its own exported functions;
 * otherwise the version and the default stream that were asked for. */
void *resolve_substitute(const char *name, int version, bool per_thread, void *found) {
    int best = -1;
    if (strncmp(name, "cuGetProcAddress", 16) == 0)
        per_thread = false;
    for (int at = 0; at < HOOKED_COUNT; at++) {
        if (strcmp(hooks[at].name, name) != 0)
            continue;
        if (found == resolve_driver((enum hooked)at) || found == resolve_ours((enum hooked)at))
            return resolve_ours((enum hooked)at);
        if (version >= hooks[at].since && (per_thread || !hooks[at].per_thread) &&
            (best < 0 || hooks[at].per_thread > hooks[best].per_thread || hooks[at].since > hooks[best].since))
            best = at;
    }
    return best < 0 ? found : substitute((enum hooked)best, found);
}

static void *ours_for(void *handle, const char *symbol) {
    if (!share_wanted())
        return NULL;
    for (int at = 0; at < HOOKED_COUNT; at++)
        if (strcmp(hooks[at].symbol, symbol) == 0) {
            void *found = real()(handle, symbol);
            return found ? substitute((enum hooked)at, found) : NULL;
        }
    return NULL;
}

/* Both end in a tail call: RTLD_NEXT means the object after the caller, and the caller is found by its return address. */
EXPORT void *dlsym(void *restrict handle, const char *restrict name) {
    if (UNLIKELY(name[0] == 'c' && name[1] == 'u')) {
        void *ours = ours_for(handle, name);
        if (ours)
            return ours;
    }
    return real()(handle, name);
}

EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
    if (UNLIKELY(name[0] == 'c' && name[1] == 'u')) {
        void *ours = ours_for(handle, name);
        if (ours)
            return ours;
    }
    real();
    return atomic_load(&real_dlvsym)(handle, name, version);
}

const struct driver *resolve_internal(void) {
    static struct driver driver;
    static _Atomic int state; /* 0: not yet, 1: complete */
    if (state == 1)
        return &driver;
    struct driver found = {
        .event_create = (CUresult(*)(CUevent *, unsigned))resolve_symbol("cuEventCreate"),
        .event_record = (CUresult(*)(CUevent, CUstream))resolve_symbol("cuEventRecord"),
        .event_query = (CUresult(*)(CUevent))resolve_symbol("cuEventQuery"),
        .event_elapsed = (CUresult(*)(float *, CUevent, CUevent))resolve_symbol("cuEventElapsedTime"),
        .is_capturing = (CUresult(*)(CUstream, int *))resolve_symbol("cuStreamIsCapturing"),
        .exchange_mode = (CUresult(*)(int *))resolve_symbol("cuThreadExchangeStreamCaptureMode"),
        .current = (CUresult(*)(CUcontext *))resolve_symbol("cuCtxGetCurrent"),
        .set_current = (CUresult(*)(CUcontext))resolve_symbol("cuCtxSetCurrent"),
        .device = (CUresult(*)(CUdevice *))resolve_symbol("cuCtxGetDevice"),
    };
    if (!found.event_create || !found.event_record || !found.event_query || !found.event_elapsed ||
        !found.is_capturing || !found.exchange_mode || !found.current || !found.set_current || !found.device)
        return NULL;
    driver = found; /* threads that get here together write the same */
    state = 1;
    return &driver;
}
