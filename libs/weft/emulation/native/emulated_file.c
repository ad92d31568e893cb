/* The file of an emulated device: made once, whole; and the place that each process has in it.
 *
 * A place has a robust lock, which a thread of the process holds for as long as it lives: the kernel tells the others
 * when it is dead, in whatever process namespace they are. */
#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORY_BYTES (16ull << 30)

/* The process's place ---------------------------------------------------------------------------------------------- */

/* True if the process of this place is dead: then its lock is ours. */
static bool take_from_dead(struct emulated_process *process) {
    int status = pthread_mutex_trylock(&process->alive);
    if (status == EOWNERDEAD)
        pthread_mutex_consistent(&process->alive);
    return status == 0 || status == EOWNERDEAD;
}

void emulated_bury_dead(struct emulated_file *file) {
    for (int at = 0; at < EMULATED_PROCESSES; at++) {
        struct emulated_process *process = &file->processes[at];
        if (atomic_load(&process->taken) && atomic_load(&process->memory) && take_from_dead(process)) {
            atomic_store(&process->memory, 0);
            pthread_mutex_unlock(&process->alive);
        }
    }
}

struct emulated_process *emulated_claim(struct emulated_file *file) {
    for (int fresh = 1; fresh >= 0; fresh--)
        for (int at = 0; at < EMULATED_PROCESSES; at++) {
            struct emulated_process *process = &file->processes[at];
            if ((fresh && atomic_load(&process->taken)) || !take_from_dead(process))
                continue;
            if (fresh && atomic_load(&process->taken)) { /* another process was faster, and is dead */
                pthread_mutex_unlock(&process->alive);
                continue;
            }
            atomic_store(&process->memory, 0);
            atomic_store(&process->busy_ns, 0);
            atomic_store(&process->kernels, 0);
            atomic_store(&process->began_ns, emulated_now());
            atomic_store(&process->pid, (uint32_t)getpid());
            atomic_store(&process->taken, 1);
            return process;
        }
    return NULL;
}

/* The file ----------------------------------------------------------------------------------------------------------- */

static bool make_file(int descriptor) {
    struct emulated_file *file;
    if (ftruncate(descriptor, sizeof *file) < 0)
        return false;
    file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (file == MAP_FAILED)
        return false;
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    for (int at = 0; at < EMULATED_PROCESSES; at++)
        pthread_mutex_init(&file->processes[at].alive, &robust);
    const char *memory = getenv("WEFT_EMULATED_MEMORY");
    uint64_t bytes = memory ? strtoull(memory, NULL, 10) : 0;
    atomic_store(&file->memory, bytes ? bytes : MEMORY_BYTES);
    file->version = EMULATED_VERSION;
    file->magic = EMULATED_MAGIC;
    munmap(file, sizeof *file);
    return true;
}

/* The file is made under another name and appears whole. */
struct emulated_file *emulated_open_file(const char *folder, int index) {
    char path[PATH_MAX], unfinished[PATH_MAX + 32];
    if (snprintf(path, sizeof path, "%s/device-%d", folder, index) >= (int)sizeof path)
        return NULL;
    struct emulated_file *file = NULL;
    for (int tries = 0; tries < 3 && !file; tries++) {
        int descriptor = open(path, O_RDWR | O_CLOEXEC);
        if (descriptor < 0 && errno == ENOENT) {
            snprintf(unfinished, sizeof unfinished, "%s.%d.unfinished", path, (int)getpid());
            int fresh = open(unfinished, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
            if (fresh < 0)
                return NULL;
            fchmod(fresh, 0666);
            if (make_file(fresh) && link(unfinished, path) < 0 && errno != EEXIST)
                tries = 3;
            close(fresh);
            unlink(unfinished);
            continue;
        }
        if (descriptor < 0)
            return NULL;
        struct stat seen;
        if (fstat(descriptor, &seen) == 0 && S_ISREG(seen.st_mode) && seen.st_size == sizeof *file)
            file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        close(descriptor);
        if (file == MAP_FAILED)
            return NULL;
    }
    if (file && (file->magic != EMULATED_MAGIC || file->version != EMULATED_VERSION)) {
        munmap(file, sizeof *file);
        return NULL;
    }
    return file;
}
