/* How long each kernel (its function with its grid and block) and each graph takes, learnt from markers. */
#include "hook.h"

#include <string.h>

#define PLACES 4096
#define PROBES 16
#define UNKNOWN_NS 100000.0f
#define WEIGHT 0.25f
#define RISE 1.01f
#define SAMPLES_ENOUGH 3
#define STALE_USES 256

static struct estimate table[PLACES];

struct estimate *estimate_of(const struct kernel *kernel) {
    uint64_t key = (uint64_t)kernel->function * 0x9e3779b97f4a7c15ull;
    for (int at = 0; at < 3; at++)
        key = (key ^ (key >> 29) ^ ((uint64_t)kernel->grid[at] << 32) ^ kernel->block[at]) * 0xbf58476d1ce4e5b9ull;
    key += !key;
    struct estimate *oldest = NULL;
    for (uint64_t probe = 0; probe < PROBES; probe++) {
        struct estimate *estimate = &table[((key >> 32) + probe) % PLACES];
        if (estimate->key == key)
            return estimate;
        if (!estimate->key) {
            *estimate = (struct estimate){.key = key, .ns = UNKNOWN_NS};
            return estimate;
        }
        if (!estimate->pending && (!oldest || estimate->uses < oldest->uses))
            oldest = estimate;
    }
    if (!oldest)
        return &table[(key >> 32) % PLACES]; /* shared with another kernel for now */
    *oldest = (struct estimate){.key = key, .ns = UNKNOWN_NS};
    return oldest;
}

/* One measurement of one launch. Beside others, or after a pause, it can only be too long. */
void estimate_learn(struct estimate *estimate, double ns, enum measured how) {
    float seen = ns < 0 ? 0 : (float)ns;
    bool first = !estimate->samples || (estimate->samples < SAMPLES_ENOUGH && seen < estimate->ns);
    if (how != BESIDE) {
        estimate->samples += estimate->samples < 1000;
        estimate->measured_at = estimate->uses;
    }
    if (first)
        estimate->ns = seen;
    else if (estimate->samples <= SAMPLES_ENOUGH && how != CLEAN)
        return;
    else if (how == CLEAN)
        estimate->ns += WEIGHT * (seen - estimate->ns);
    else if (seen < estimate->ns)
        estimate->ns += (seen - estimate->ns) / 2;
    else if (how == AFTER_PAUSE)
        estimate->ns += seen > RISE * estimate->ns ? (RISE - 1) * estimate->ns : seen - estimate->ns;
}

/* A new kernel, and one that always runs beside others' work, is measured alone now and then. */
bool estimate_wanting(const struct estimate *estimate) {
    return !estimate->hopeless &&
           (estimate->samples < SAMPLES_ENOUGH || estimate->uses - estimate->measured_at >= STALE_USES);
}

void estimates_forget(void) { memset(table, 0, sizeof table); }
