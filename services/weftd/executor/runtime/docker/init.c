/* The first process of a container: weft-init STOP PROGRAM [ARGUMENT]...
 *
 * It starts the program, the main process, reaps orphans and passes signals on to the main process alone. SIGTERM asks the
 * run to stop: the main process gets the signal with the number STOP. When it has ended after that, what remains is
 * followed as remaining.py does it for plain processes: a process gets SIGTERM once its parent and the writers of its
 * standard input have ended. The first process ends with the last one, or is killed with all of them at the end of the
 * grace. HURRY comes shortly before: children of those that were asked, and have not ended, get SIGTERM, too.
 * Without a stop the first process ends with the main process, and the kernel kills what remains.
 *
 * Its status is that of the main process, 128 + N for signal N; 127 for a program that is not there, 126 for one that
 * cannot be run, each with a line on stderr.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HURRY = 40, NOT_FOUND = 127, NOT_RUN = 126, LOOK_NANOSECONDS = 100000000, LINK_BYTES = 64, READING_LOOKS = 10 };

struct process {
    long pid, parent;
    unsigned long long began;
    int told, session, ready, looks; /* `looks`: for how many it had an input without a writer */
    char pipes[3][LINK_BYTES]; /* of standard input, output and error output; empty for what is no pipe */
};

struct list {
    struct process *items;
    size_t count, room;
};

static pid_t main_pid;
static int stop_signal, stopping, main_ended, main_status, hurry;
static struct list found, last, told; /* the live processes at this look and the last; those that have had SIGTERM */

static struct process *add(struct list *list, const struct process *process)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct process *items = realloc(list->items, room * sizeof *items);
        if (!items)
            return NULL;
        list->items = items;
        list->room = room;
    }
    list->items[list->count] = *process;
    return &list->items[list->count++];
}

static struct process *with_pid(const struct list *list, long pid)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].pid == pid)
            return &list->items[i];
    return NULL;
}

/* Read a process; 0 if it has ended. */
static int read_process(long pid, struct process *process)
{
    char path[64], text[1024], *end, state;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    memset(process, 0, sizeof *process);
    process->pid = pid;
    end = strrchr(text, ')');
    if (!end || sscanf(end + 1,
                       " %c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                       &state, &process->parent, &process->began) != 3)
        return 0;
    for (int fd = 0; fd < 3; fd++) {
        snprintf(path, sizeof path, "/proc/%ld/fd/%d", pid, fd);
        ssize_t length = readlink(path, process->pipes[fd], LINK_BYTES - 1);
        process->pipes[fd][length > 0 ? length : 0] = 0;
        if (strncmp(process->pipes[fd], "pipe:", 5))
            process->pipes[fd][0] = 0;
    }
    const struct process *before = with_pid(&told, pid);
    process->told = (before && before->began == process->began) || pid == main_pid;
    before = with_pid(&last, pid);
    process->looks = before && before->began == process->began ? before->looks : 0;
    return state != 'Z' && state != 'X';
}

/* Whether the process is below one that the engine put here beside the run: those have no parent here. */
static int of_session(const struct process *process)
{
    for (size_t steps = 0; process && steps <= found.count; steps++) {
        if (process->parent == 0)
            return 1;
        process = with_pid(&found, process->parent);
    }
    return 0;
}

static int fed(const struct process *reader)
{
    for (size_t i = 0; *reader->pipes[0] && i < found.count; i++) {
        const struct process *writer = &found.items[i];
        if (writer->pid != reader->pid && !writer->session &&
            (!strcmp(writer->pipes[1], reader->pipes[0]) || !strcmp(writer->pipes[2], reader->pipes[0])))
            return 1;
    }
    return 0;
}

static void look(void)
{
    struct process process;
    struct dirent *entry;
    DIR *folder = opendir("/proc");
    struct list before = last;
    last = found;
    found = before;
    found.count = 0;
    while (folder && (entry = readdir(folder))) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && read_process(pid, &process))
            add(&found, &process);
    }
    if (folder)
        closedir(folder);
    for (size_t i = 0; i < found.count; i++)
        found.items[i].session = of_session(&found.items[i]);
}

/* Send SIGTERM to the processes that are due, and SIGKILL to those of sessions. */
static void follow(void)
{
    size_t free_ones = 0, asked = 0;
    look();
    for (size_t i = 0; i < found.count; i++) {
        struct process *process = &found.items[i];
        const struct process *parent = with_pid(&found, process->parent);
        asked += process->told && !process->session;
        process->ready = !process->told && !process->session && (!parent || (hurry && parent->told)) && !fed(process);
        free_ones += process->ready;
        if (process->ready && *process->pipes[0] && !hurry && process->looks++ < READING_LOOKS)
            process->ready = 0;
    }
    for (size_t i = 0; i < found.count; i++) {
        struct process *process = &found.items[i];
        if (process->session) {
            if (main_ended)
                kill(process->pid, SIGKILL);
        } else if (process->ready || (!process->told && !free_ones && !asked)) {
            add(&told, process);
            kill(process->pid, SIGTERM);
        }
    }
    hurry = 0;
}

/* Reap what has ended. Ends with the main process, or after a stop with the last one. */
static void reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == main_pid) {
            main_ended = 1;
            main_pid = 0;
            main_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
    if (main_ended && (!stopping || (pid < 0 && errno == ECHILD)))
        _exit(main_status);
}

static void take(int number)
{
    if (number == SIGTERM)
        stopping = 1;
    if (number == HURRY)
        hurry = stopping;
    else if (number != SIGCHLD && main_pid)
        kill(main_pid, number == SIGTERM ? stop_signal : number);
}

static void start(char **command, const sigset_t *before)
{
    main_pid = fork();
    if (main_pid < 0) {
        fprintf(stderr, "weft-init: fork failed: %s\n", strerror(errno));
        _exit(NOT_RUN);
    }
    if (main_pid == 0) {
        setpgid(0, 0);
        sigprocmask(SIG_SETMASK, before, NULL);
        execvp(command[0], command);
        if (errno == ENOEXEC) { /* a script without a first line that names its program: some C libraries try this */
            *--command = "sh";
            execvp(command[0], command);
        }
        int missing = errno == ENOENT;
        fprintf(stderr, "weft-init: exec %s failed: %s\n", command[0], strerror(errno));
        _exit(missing ? NOT_FOUND : NOT_RUN);
    }
}

int main(int count, char **arguments)
{
    const struct timespec pause = {.tv_nsec = LOOK_NANOSECONDS};
    sigset_t all, before;
    if (count < 3 || (stop_signal = atoi(arguments[1])) <= 0) {
        fprintf(stderr, "usage: weft-init STOP PROGRAM [ARGUMENT]...\n");
        return NOT_RUN;
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    start(arguments + 2, &before);
    for (;;) {
        int number = main_ended ? sigtimedwait(&all, NULL, &pause) : sigwaitinfo(&all, NULL);
        if (number > 0)
            take(number);
        reap();
        if (main_ended || hurry)
            follow();
    }
}
