/*
 * The launcher's whole main() on a simulated machine. The input has what it is given, and how each system
 * call goes.
 *
 * It is a byte with a length and so many bytes of schedule, two bytes with a length and so many bytes that
 * the agent replies, then variables with a NUL behind each, an empty one, and standard input. A call takes a
 * byte of the schedule, which says whether it is cut short, interrupted or fails; behind the end of the
 * schedule all goes well. Its first four bytes are about the machine: how often there is no agent to connect
 * to (0xFF: never one), whether its heartbeat is recent and what the path file is, how often variables are
 * repeated, and how often standard input is (powers of two).
 *
 * libFuzzer calls LLVMFuzzerTestOneInput, tests/fuzz/of_launcher.py calls launcher_run. main() is for
 * compilers without that engine: it runs inputs from standard input, each with its length before it.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <net/if.h>

enum { INPUT = STDIN_FILENO, OUTPUT = STDOUT_FILENO, AGENT = 10, PATH_FILE, SPOOLED };
enum { MACHINE_BYTES = 4, MOST_CALLS = 8 * 1024 * 1024, MOST_MS = 300 * 1000 };
enum { MOST_VARIABLES = 4096, MOST_INPUT = 3 * 1024 * 1024 };

static struct {
    const uint8_t *schedule, *reply;
    size_t schedule_length, at, reply_length, replied;
    const uint8_t *input;
    size_t input_length, input_read, repetitions, repeated;
    char *variables[MOST_VARIABLES + 1];
    unsigned refusals;
    bool is_recent, output_failed;
    uint8_t path_file;
    int64_t now_ns;
    long calls;
} machine;

struct outcome {
    int code;
    size_t output_length, kept_length, sent_length;
    bool is_kept;
    char output[5 * 1024 * 1024];
    char kept[2 * 1024 * 1024];
    char name[PATH_MAX];
};
static struct outcome outcome;

static const char *const path_files[] = {
    "/run/netmgr/cni.sock\n/var/lib/netmgr/spool\n", "", "relative\n/spool\n", "/a\n/b\nc\n", "/a\n",
};

static unsigned next(unsigned ways)
{
    assert(++machine.calls < MOST_CALLS);
    return machine.at < machine.schedule_length ? machine.schedule[machine.at++] % ways : 0;
}

static int refuse(int reason)
{
    errno = reason;
    return -1;
}

static ssize_t taken(size_t wanted)
{
    switch (next(4)) {
    case 1:
        return wanted > 0;
    case 2:
        return refuse(EINTR);
    case 3:
        return refuse(EIO);
    default:
        return (ssize_t)wanted;
    }
}

static ssize_t simulated_read(int file, void *data, size_t limit)
{
    const uint8_t *from = NULL;
    size_t left = 0;
    if (file == PATH_FILE) {
        const char *text = path_files[machine.path_file % (sizeof path_files / sizeof *path_files)];
        left = strlen(text) < limit ? strlen(text) : limit;
        memcpy(data, text, left);
        return (ssize_t)left;
    }
    if (file == INPUT) {
        if (machine.input_read == machine.input_length && machine.repeated + 1 < machine.repetitions)
            machine.input_read = 0, machine.repeated++;
        from = machine.input + machine.input_read;
        left = machine.input_length - machine.input_read;
    } else {
        assert(file == AGENT);
        from = machine.reply + machine.replied;
        left = machine.reply_length - machine.replied;
    }
    ssize_t got = taken(left < limit ? left : limit);
    if (got > 0)
        memcpy(data, from, (size_t)got);
    if (got > 0)
        *(file == INPUT ? &machine.input_read : &machine.replied) += (size_t)got;
    return got;
}

static ssize_t simulated_write(int file, const void *data, size_t length)
{
    char *to = file == OUTPUT ? outcome.output : outcome.kept;
    size_t *at = file == OUTPUT ? &outcome.output_length : &outcome.kept_length;
    assert(file == OUTPUT || file == SPOOLED);
    ssize_t written = taken(length);
    machine.output_failed |= file == OUTPUT && written < 0 && errno != EINTR;
    if (written > 0) {
        assert(*at + (size_t)written <= (file == OUTPUT ? sizeof outcome.output : sizeof outcome.kept));
        memcpy(to + *at, data, (size_t)written);
        *at += (size_t)written;
    }
    return written;
}

static ssize_t simulated_send(int file, const void *data, size_t length, int flags)
{
    (void)data;
    assert(file == AGENT && (flags & MSG_NOSIGNAL));
    ssize_t sent = taken(length);
    if (sent > 0)
        outcome.sent_length += (size_t)sent;
    return sent;
}

static int simulated_poll(struct pollfd *waiting, nfds_t count, int timeout)
{
    assert(timeout >= 0);
    unsigned way = count == 0 ? 1 : next(3);
    if (way == 1)
        machine.now_ns += (int64_t)timeout * 1000000;
    if (way == 2)
        return refuse(EINTR);
    if (way == 0)
        waiting->revents = POLLIN;
    return way == 0;
}

static int simulated_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    machine.now_ns += 1000;
    now->tv_sec = machine.now_ns / 1000000000;
    now->tv_nsec = machine.now_ns % 1000000000;
    return 0;
}

static int simulated_open(const char *path, int flags, ...)
{
    (void)flags;
    if (strstr(path, ".path") != NULL)
        return machine.path_file == 0xFF ? refuse(ENOENT) : PATH_FILE;
    outcome.kept_length = 0;
    return next(2) == 0 ? SPOOLED : refuse(ENOSPC);
}

static int simulated_close(int file)
{
    return file == SPOOLED && next(2) != 0 ? refuse(EDQUOT) : 0;
}

static int simulated_rename(const char *from, const char *to)
{
    (void)from;
    if (next(2) != 0)
        return refuse(EROFS);
    outcome.is_kept = true;
    snprintf(outcome.name, sizeof outcome.name, "%s", to);
    return 0;
}

static int simulated_socket(int family, int type, int protocol)
{
    (void)family, (void)type, (void)protocol;
    return next(2) == 0 ? AGENT : refuse(EMFILE);
}

static int simulated_connect(int file, const struct sockaddr *address, socklen_t length)
{
    static const int reasons[] = {ENOENT, ECONNREFUSED, EAGAIN, EACCES};
    assert(file == AGENT && address->sa_family == AF_UNIX && length == sizeof(struct sockaddr_un));
    unsigned way = next(4);
    if (machine.refusals == 0)
        return 0;
    machine.refusals -= machine.refusals != 0xFF;
    return refuse(reasons[way]);
}

static int simulated_stat(const char *path, struct stat *found)
{
    assert(strlen(path) < PATH_MAX);
    found->st_mtim.tv_sec = machine.now_ns / 1000000000 - 5;
    return machine.is_recent ? 0 : refuse(ENOENT);
}

static ssize_t simulated_readlink(const char *path, char *name, size_t size)
{
    (void)path;
    const char *text = machine.path_file & 0x80 ? "/opt/cni/bin/netmgr (deleted)" : "/opt/cni/bin/netmgr";
    assert(strlen(text) <= size);
    memcpy(name, text, strlen(text));
    return (ssize_t)strlen(text);
}

static char *simulated_getenv(const char *name)
{
    for (char **each = machine.variables; *each != NULL; each++)
        if (strncmp(*each, name, strlen(name)) == 0 && (*each)[strlen(name)] == '=')
            return *each + strlen(name) + 1;
    return NULL;
}

#define clock_gettime(clock, now) simulated_clock_gettime(clock, now)
#define close(file) simulated_close(file)
#define connect(file, address, length) simulated_connect(file, address, length)
#define getenv(name) simulated_getenv(name)
#define main launcher_main
#define mkdir(path, mode) (0)
#define open(...) simulated_open(__VA_ARGS__)
#define poll(waiting, count, timeout) simulated_poll(waiting, count, timeout)
#define read(file, data, limit) simulated_read(file, data, limit)
#define readlink(path, name, size) simulated_readlink(path, name, size)
#define rename(from, to) simulated_rename(from, to)
#define send(file, data, length, flags) simulated_send(file, data, length, flags)
#define setsockopt(file, level, option, value, length) (void)(value)
#define shutdown(file, how) (0)
#define socket(family, type, protocol) simulated_socket(family, type, protocol)
#define stat(path, found) simulated_stat(path, found)
#define unlink(path) (void)(path)
#define write(file, data, length) simulated_write(file, data, length)
#include "../../cni/launcher.c"
#undef main
#undef read
#undef write

/* What the launcher writes itself is one line of JSON without anything to escape. */
static void check_own_answer(void)
{
    static const char head[] = "{\"cniVersion\":\"";
    size_t quotes = 0;
    if (outcome.output_length == 0 || machine.output_failed)
        return;
    assert(outcome.output_length > sizeof head && memcmp(outcome.output, head, sizeof head - 1) == 0);
    assert(memcmp(outcome.output + outcome.output_length - 2, "}\n", 2) == 0);
    for (size_t at = 0; at < outcome.output_length - 1; at++) {
        unsigned char each = (unsigned char)outcome.output[at];
        assert(each >= ' ' && each <= '~' && each != '\\');
        quotes += each == '"';
    }
    assert(quotes % 2 == 0);
}

static size_t take(const uint8_t **data, size_t *size, size_t width)
{
    size_t length = 0;
    for (; width > 0 && *size > 0; width--, (*data)++, (*size)--)
        length = length << 8 | **data;
    return length < *size ? length : *size;
}

static void skip(const uint8_t **data, size_t *size, size_t length)
{
    *data += length;
    *size -= length;
}

/* Variables up to an empty one, in a block of their own: an overrun must not find the next one there. */
static void set_variables(const uint8_t **data, size_t *size, size_t repetitions)
{
    const uint8_t *const first = *data;
    const size_t all = *size;
    size_t count = 0;
    for (size_t round = 0; round < repetitions; round++) {
        *data = first, *size = all;
        while (*size > 0) {
            size_t length = strnlen((const char *)*data, *size);
            if (length > 0 && count < MOST_VARIABLES) {
                machine.variables[count] = malloc(length + 1);
                memcpy(machine.variables[count], *data, length);
                machine.variables[count++][length] = '\0';
            }
            skip(data, size, length < *size ? length + 1 : length);
            if (length == 0)
                break;
        }
    }
    machine.variables[count] = NULL;
}

const struct outcome *launcher_run(const uint8_t *data, size_t size)
{
    memset(&machine, 0, sizeof machine);
    memset(&outcome, 0, offsetof(struct outcome, output));
    request.length = 0, input = request.data, *encoding_fault = '\0';
    memset(request.data, 0, sizeof request.data);
    socket_path = "/run/netmgr/cni.sock", spool_path = "/var/lib/netmgr/spool";
    machine.now_ns = (int64_t)1700000000 * 1000000000;

    machine.schedule_length = take(&data, &size, 1);
    machine.schedule = data;
    skip(&data, &size, machine.schedule_length);
    machine.reply_length = take(&data, &size, 2);
    machine.reply = data;
    skip(&data, &size, machine.reply_length);
    uint8_t about[MACHINE_BYTES] = {0};
    for (size_t each = 0; each < MACHINE_BYTES && machine.at < machine.schedule_length; each++)
        about[each] = machine.schedule[machine.at++];
    machine.refusals = about[0];
    machine.is_recent = about[1] & 1;
    machine.path_file = about[1] >> 1 == 0x7F ? 0xFF : about[1] >> 1;
    set_variables(&data, &size, (size_t)1 << (about[2] & 7));
    machine.input = data;
    machine.input_length = size;
    machine.repetitions = (size_t)1 << (about[3] & 15);
    while (machine.repetitions > 1 && machine.repetitions * size > MOST_INPUT)
        machine.repetitions /= 2;

    int64_t began = machine.now_ns;
    char *arguments[] = {"netmgr", NULL};
    outcome.code = launcher_main(1, arguments, machine.variables);
    assert(outcome.code >= 0 && outcome.code <= 255);
    assert((machine.now_ns - began) / 1000000 < MOST_MS);
    assert(outcome.sent_length <= 3 * sizeof request.data);
    if (outcome.is_kept)
        assert(outcome.kept_length == request.length && memcmp(outcome.kept, request.data, request.length) == 0);
    if (machine.replied == 0)
        check_own_answer();
    for (char **each = machine.variables; *each != NULL; each++)
        free(*each);
    return &outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* In a block of its own, so that a read behind its end is noticed. */
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, data, size);
    (void)launcher_run(copy, size);
    free(copy);
    return 0;
}

#ifdef ALONE
int main(void)
{
    static uint8_t data[1 << 16];
    uint8_t head[4];
    long count = 0;
    for (; fread(head, 1, sizeof head, stdin) == sizeof head; count++) {
        size_t length = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (length > sizeof data || fread(data, 1, length, stdin) != length)
            return 2;
        LLVMFuzzerTestOneInput(data, length);
    }
    printf("%ld inputs\n", count);
    return 0;
}
#endif
