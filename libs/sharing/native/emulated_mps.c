/* A client of the emulated MPS daemon (libs/sharing/emulated_mps.py), as far as NVIDIA documents what a client sees.
 *
 * Clients take no turns: each works at the part of the device that its variable says, all of them together at no more
 * than the device has. As with NVIDIA's daemon, whatever is wrong with the variables gives a process more and not less:
 * without a daemon it has the whole device as if there were no MPS, and one name of a device that it does not see drops
 * its limits of memory. */
#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define WHOLE 1000u
#define ANSWER_SECONDS 5

/* The connection, or -1: there is no daemon. */
static int connected(const char *folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/control", folder) >= (int)sizeof address.sun_path)
        return -1;
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
        return -1;
    struct timeval most = {ANSWER_SECONDS, 0}, for_ever = {0, 0};
    char answer[3];
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) < 0 ||
        send(descriptor, "client\n", 7, MSG_NOSIGNAL) != 7 ||
        recv(descriptor, answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer) {
        close(descriptor);
        return -1;
    }
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof for_ever);
    return descriptor;
}

static unsigned part_of(const char *percentage) {
    double part = percentage ? strtod(percentage, NULL) * 10.0 : 0.0;
    return part >= 1.0 && part <= WHOLE ? (unsigned)(part + 0.5) : WHOLE;
}

/* `GPU-uuid=2G,0=512M`: the limit of this device; 0, none at all, if one entry is of another device or no limit. */
static uint64_t limit_of(const struct emulated_device *device, const char *text) {
    const char *uuid = getenv("WEFT_EMULATED_UUID");
    uint64_t limit = 0;
    while (text && *text) {
        size_t name = strcspn(text, "=,");
        char *end, number[16];
        snprintf(number, sizeof number, "%d", device->number);
        bool mine = (uuid && strlen(uuid) == name && strncmp(text, uuid, name) == 0) ||
                    (strlen(number) == name && strncmp(text, number, name) == 0);
        if (!mine || text[name] != '=')
            return 0;
        uint64_t bytes = strtoull(text + name + 1, &end, 10);
        if (*end != 'G' && *end != 'M')
            return 0;
        limit = bytes << (*end == 'G' ? 30 : 20);
        if (end[1] && end[1] != ',')
            return 0;
        text = end[1] ? end + 2 : end + 1;
    }
    return limit;
}

struct connection {
    int descriptor;
    struct emulated_device *device;
};

/* The end of the connection is the end of the daemon: no call of this process succeeds any more. */
static void *watch(void *argument) {
    struct connection *connection = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    char any;
    ssize_t size;
    do
        size = recv(connection->descriptor, &any, 1, 0);
    while (size > 0 || (size < 0 && errno == EINTR));
    atomic_store(&connection->device->lost, 1);
    return NULL;
}

void emulated_join_mps(struct emulated_device *device) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int descriptor = folder && *folder ? connected(folder) : -1;
    if (descriptor < 0)
        return;
    device->memory_limit = limit_of(device, getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
    atomic_store(&device->mine->part, part_of(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")));
    struct connection *connection = malloc(sizeof *connection);
    pthread_t thread;
    *connection = (struct connection){descriptor, device};
    if (pthread_create(&thread, NULL, watch, connection) == 0)
        pthread_detach(thread);
}

uint64_t emulated_beside_others(struct emulated_device *device, uint64_t ready, uint64_t ns) {
    uint64_t now = emulated_now(), parts = 0;
    unsigned mine = atomic_load(&device->mine->part);
    for (int at = 0; at < EMULATED_PROCESSES; at++) {
        struct emulated_process *process = &device->file->processes[at];
        if (process != device->mine && atomic_load(&process->part) && atomic_load(&process->until_ns) > now)
            parts += atomic_load(&process->part);
    }
    parts += mine;
    double speed = (double)mine / (double)(parts > WHOLE ? parts : WHOLE);
    uint64_t until = ready + (uint64_t)((double)ns / speed);
    atomic_store(&device->mine->until_ns, until);
    return until;
}
