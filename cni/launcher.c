/*
 * The CNI plugin's host side: carries a request to the agent and its answer back. No more.
 *
 * Request, on the agent's Unix socket: "netmgr-cni 1", every CNI_* variable as NAME=value,
 * NETMGR_STARTED=nanoseconds since boot (by which the agent recognises a request that others
 * have overtaken) and an empty string, each with a NUL after it, then standard input; then the
 * sending side is shut.
 * Reply: the exit code in decimal, a line feed, and standard output, up to the end.
 *
 * It answers alone: VERSION, and any request while the agent is away or hangs. Then STATUS gets code
 * 50, as CHECK does of an agent that hangs, a DEL is kept on disk for the agent to carry out later, and
 * anything else gets code 11, "try again later". A request that can never succeed gets code 4 even then,
 * and is not kept. Codes: CNI specification 1.1.0, section 5, "Error".
 *
 * ADD and CHECK wait once before that, if the agent was there a moment ago: it is being replaced, and
 * a kubelet would try again only after 15 s. Its file "cni.heartbeat", beside the socket, shows when
 * it was there last. A request that broke off is repeated once; the agent may get either verb twice.
 *
 * A file beside the program, of its name with ".path" added, has the agent's socket in the first
 * line and the directory of kept DELs in the second. If that takes none, they are kept in "spool" beside
 * the socket. Every wait is bounded.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
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

#include "config.h"
#include "variables.h"

#define GREETING "netmgr-cni 1"
#define SUPPORTED "\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\""

#define MAX_VARIABLES (256 * 1024)
#define MAX_STDIN (1024 * 1024)
#define MAX_REPLY (4 * 1024 * 1024)

#ifndef STDIN_MS /* a runtime hands the configuration over at once */
#define STDIN_MS 10000
#endif
#ifndef SEND_MS /* the agent accepts and reads at once, unless it hangs */
#define SEND_MS 10000
#endif
#ifndef REPLY_MS /* container runtimes give up after 120 s at the earliest */
#define REPLY_MS 110000
#endif
#ifndef LOOK_MS /* STATUS and CHECK only look: containerd asks for STATUS every 5 s */
#define LOOK_MS 3000
#endif

#define RECENT_SECONDS 60 /* an agent renews its heartbeat every 10 s */
#define FIRST_PAUSE_MS 10
#define LONGEST_PAUSE_MS 50

enum { EXIT_FAILED = 1 };
enum { BAD_ENVIRONMENT = 4, IO_FAILURE = 5, INVALID_CONFIG = 7, TRY_AGAIN_LATER = 11, NOT_AVAILABLE = 50 };

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif
/* By this the installer recognises the file and its source; volatile, or the linker drops it. */
static const volatile char mark[] = "netmgr-cni launcher built from " SOURCE_DIGEST;

/* One byte more than the limit, which shows that there was too much, and a NUL that stays for strstr. */
static struct {
    char data[MAX_VARIABLES + MAX_STDIN + 2];
    size_t length;
} request;
static const char *input = request.data;
static char reply[MAX_REPLY];

static const char *socket_path = "/run/netmgr/cni.sock";
static const char *spool_path = "/var/lib/netmgr/spool";

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now_ms(void)
{
    return now_ns(CLOCK_MONOTONIC) / 1000000;
}

/* ---- answering ---- */

static bool write_all(int file, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t written = write(file, data, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        data += written;
        length -= (size_t)written;
    }
    return true;
}

static void print(const char *text)
{
    (void)write_all(STDOUT_FILENO, text, strlen(text));
}

/* Copies text so that it needs no escaping in JSON. */
static void copy_printable(char *copy, size_t size, const char *text)
{
    snprintf(copy, size, "%s", text);
    for (char *at = copy; *at != '\0'; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
}

static int fail(int code, const char *message, const char *details)
{
    char text[3 * PATH_MAX], safe_message[PATH_MAX], safe_details[PATH_MAX];
    copy_printable(safe_message, sizeof safe_message, message);
    copy_printable(safe_details, sizeof safe_details, details);
    snprintf(text, sizeof text, "{\"cniVersion\":\"%s\",\"code\":%d,\"msg\":\"%s\",\"details\":\"%s\"}\n",
             requested_version(input), code, safe_message, safe_details);
    print(text);
    return EXIT_FAILED;
}

static int answer_version(void)
{
    char text[256];
    snprintf(text, sizeof text, "{\"cniVersion\":\"%s\",\"supportedVersions\":[" SUPPORTED "]}\n", requested_version(input));
    print(text);
    return EXIT_SUCCESS;
}

/* ---- gathering the request ---- */

/* False with errno EINVAL: the path file is not two lines of absolute paths. */
static bool read_paths(void)
{
    static char name[PATH_MAX], text[2 * PATH_MAX];
    static const char replaced[] = " (deleted)"; /* the kernel adds it once an upgrade has replaced the file */
    const size_t surplus = sizeof replaced - 1;
    ssize_t length = readlink("/proc/self/exe", name, sizeof name - sizeof ".path");
    if (length < 0)
        return true;
    name[length] = '\0';
    if ((size_t)length > surplus && strcmp(name + length - surplus, replaced) == 0)
        length -= (ssize_t)surplus;
    strcpy(name + length, ".path");
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT;
    length = read(file, text, sizeof text - 1);
    close(file);
    if (length < 0)
        return false;
    text[length] = '\0';
    errno = EINVAL;
    char *second = strchr(text, '\n');
    char *end = second == NULL ? NULL : strchr(second + 1, '\n');
    if (end == NULL || end[1] != '\0' || text[0] != '/' || second[1] != '/')
        return false;
    *second++ = *end = '\0';
    socket_path = text;
    spool_path = second;
    return true;
}

static bool append(const char *data, size_t length)
{
    if (length > MAX_VARIABLES - request.length)
        return false;
    memcpy(request.data + request.length, data, length);
    request.length += length;
    return true;
}

static char encoding_fault[128]; /* names a variable that is not UTF-8; else empty */

static bool gather_variables(char **environment)
{
    char started[64];
    int length = snprintf(started, sizeof started, "NETMGR_STARTED=%lld", (long long)now_ns(CLOCK_BOOTTIME));
    bool fits = append(GREETING, sizeof GREETING);
    for (; fits && *environment != NULL; environment++) {
        const char *end = strchr(*environment, '=');
        if (strncmp(*environment, "CNI_", 4) != 0 || end == NULL)
            continue;
        if (!is_utf8(*environment))
            snprintf(encoding_fault, sizeof encoding_fault, "bytes that are not UTF-8 in %.*s",
                     (int)(end - *environment), *environment);
        fits = append(*environment, strlen(*environment) + 1);
    }
    return fits && append(started, (size_t)length + 1) && append("", 1);
}

/* Bytes read up to the end or the limit, or -1; ETIMEDOUT if the end does not come in time. */
static ssize_t read_to_end(int file, char *data, size_t limit, int timeout_ms)
{
    int64_t deadline = now_ms() + timeout_ms;
    size_t length = 0;
    while (length < limit) {
        int64_t left = deadline - now_ms();
        struct pollfd waiting = {.fd = file, .events = POLLIN};
        int ready = poll(&waiting, 1, left > 0 ? (int)left : 0);
        if (ready == 0)
            errno = ETIMEDOUT;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return -1;
        ssize_t got = read(file, data + length, limit - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    return (ssize_t)length;
}

/* ---- the agent ---- */

static int connect_to_agent(int64_t timeout_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    if (strlen(socket_path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, socket_path);
    int agent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (agent < 0)
        return -1;
    /* Bounds connect(2) as well, which blocks while the listen queue is full. */
    (void)setsockopt(agent, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(agent, (struct sockaddr *)&address, sizeof address) == 0)
        return agent;
    int reason = errno == EAGAIN ? ETIMEDOUT : errno;
    close(agent);
    errno = reason;
    return -1;
}

static int64_t smaller(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Length of the reply, or -1. The agent may refuse a request before it has read all of it, so a send
 * that fails is not final: the answer may be there. */
static ssize_t ask_agent(int64_t deadline)
{
    int agent = connect_to_agent(smaller(SEND_MS, deadline - now_ms()));
    if (agent < 0)
        return -1;
    size_t sent = 0;
    while (sent < request.length) {
        ssize_t now = send(agent, request.data + sent, request.length - sent, MSG_NOSIGNAL);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            break;
        sent += (size_t)now;
    }
    (void)shutdown(agent, SHUT_WR);
    int64_t left = deadline - now_ms();
    if (sent < request.length)
        left = smaller(SEND_MS, left);
    ssize_t length = read_to_end(agent, reply, sizeof reply, (int)left);
    int reason = errno;
    close(agent);
    errno = reason;
    return length;
}

/* The exit code of a complete reply, whose output starts at *output; -1 otherwise. */
static int exit_code(ssize_t length, size_t *output)
{
    int code = 0;
    ssize_t at = 0;
    while (at < length && at < 3 && reply[at] >= '0' && reply[at] <= '9')
        code = code * 10 + (reply[at++] - '0');
    if (at == 0 || at >= length || reply[at] != '\n' || code > 255 || length >= MAX_REPLY) {
        if (length >= 0)
            errno = length == 0 ? ECONNRESET : EPROTO;
        return -1;
    }
    *output = (size_t)at + 1;
    return code;
}

/* ---- the agent is being replaced ---- */

/* The path of what is called so in the socket's directory. */
static void set_beside_socket(char path[PATH_MAX], const char *name)
{
    const char *end = strrchr(socket_path, '/') + 1;
    snprintf(path, PATH_MAX, "%.*s%s", (int)(end - socket_path), socket_path, name);
}

/* False, too, after a reboot, which clears the directory, and if the clock was set back. */
static bool was_there_recently(void)
{
    char heartbeat[PATH_MAX];
    struct stat found;
    struct timespec now;
    set_beside_socket(heartbeat, "cni.heartbeat");
    if (stat(heartbeat, &found) != 0)
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    return found.st_mtim.tv_sec <= now.tv_sec && now.tv_sec - found.st_mtim.tv_sec <= RECENT_SECONDS;
}

/* With ECONNRESET it ended before it had read the request (unix(7)), which thus may be sent again. */
static bool is_away(int reason)
{
    return reason == ENOENT || reason == ECONNREFUSED || reason == ECONNRESET;
}

/* As ask_agent, once an agent listens again, which then has LOOK_MS at least. */
static ssize_t ask_successor(int seconds, int64_t deadline)
{
    int64_t patience = now_ms() + 1000 * seconds;
    for (int pause = FIRST_PAUSE_MS;; pause = pause < LONGEST_PAUSE_MS / 2 ? 2 * pause : LONGEST_PAUSE_MS) {
        int64_t left = patience - now_ms();
        (void)poll(NULL, 0, left > pause ? pause : left > 0 ? (int)left : 0);
        int64_t soonest = now_ms() + LOOK_MS;
        ssize_t length = ask_agent(deadline > soonest ? deadline : soonest);
        if (length >= 0 || !is_away(errno) || now_ms() >= patience)
            return length;
    }
}

/* ---- the agent is away ---- */

/* One file for each attachment, however often its DEL comes: FNV-1a of container id and interface. */
static uint64_t attachment_hash(void)
{
    const char *parts[] = {getenv("CNI_CONTAINERID"), getenv("CNI_IFNAME")};
    uint64_t hash = 14695981039346656037u;
    for (size_t part = 0; part < 2; part++) {
        const char *at = parts[part] == NULL ? "" : parts[part];
        do
            hash = (hash ^ (unsigned char)*at) * 1099511628211u;
        while (*at++ != '\0');
    }
    return hash;
}

/* By rename, so that the agent never reads half a request. */
static bool keep_request_in(const char *directory)
{
    char temporary[PATH_MAX], name[PATH_MAX];
    unsigned long long hash = attachment_hash();
    snprintf(name, sizeof name, "%s/%016llx.del", directory, hash);
    if (snprintf(temporary, sizeof temporary, "%s/.%016llx.%ld", directory, hash, (long)getpid()) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return false;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return false;
    bool kept = write_all(file, request.data, request.length);
    kept = close(file) == 0 && kept;
    if (kept && rename(temporary, name) == 0)
        return true;
    int reason = errno;
    unlink(temporary);
    errno = reason;
    return false;
}

/* Where the state's disk refuses (it is full), beside the socket, which usually is in memory. */
static bool keep_request(void)
{
    char second[PATH_MAX];
    if (keep_request_in(spool_path))
        return true;
    int reason = errno;
    set_beside_socket(second, "spool");
    bool kept = keep_request_in(second);
    errno = reason;
    return kept;
}

static int answer_without_agent(const char *command)
{
    char details[PATH_MAX + 128];
    const bool hangs = errno == ETIMEDOUT;
    snprintf(details, sizeof details, "%s: %s", socket_path, strerror(errno));
    if (strcmp(command, "STATUS") == 0 || (hangs && strcmp(command, "CHECK") == 0))
        return fail(NOT_AVAILABLE, "the netmgr agent does not answer", details);
    if (strcmp(command, "DEL") != 0)
        return fail(TRY_AGAIN_LATER, "the netmgr agent does not answer", details);
    if (keep_request())
        return EXIT_SUCCESS;
    snprintf(details, sizeof details, "%s: %s", spool_path, strerror(errno));
    return fail(TRY_AGAIN_LATER, "the netmgr agent does not answer, and the DEL cannot be kept", details);
}

static int answer(ssize_t length, size_t output, int code)
{
    return write_all(STDOUT_FILENO, reply + output, (size_t)length - output) ? code : EXIT_FAILED;
}

/* The first attempt failed, for the reason in errno. */
static int answer_at_second_attempt(const char *command, int64_t deadline)
{
    char faults[256];
    int reason = errno;
    bool is_replaced = reason == ECONNRESET || (is_away(reason) && was_there_recently());
    if (find_variable_faults(command, faults, sizeof faults))
        return fail(BAD_ENVIRONMENT, faults, "");
    const bool is_add = strcmp(command, "ADD") == 0;
    if (is_add || strcmp(command, "CHECK") == 0) {
        int seconds = seconds_to_wait(input);
        /* What was attached under an older configuration stays checkable: the agent refuses it to ADD alone. */
        if (seconds < 0 && !is_add)
            seconds = WAIT_SECONDS;
        if (seconds < 0)
            return fail(INVALID_CONFIG, "wait: must be a whole number of seconds from 0 to 10", "");
        if (is_replaced && seconds > 0) {
            size_t output = 0;
            ssize_t length = ask_successor(seconds, deadline);
            int code = exit_code(length, &output);
            if (code >= 0)
                return answer(length, output, code);
            reason = errno;
        }
    }
    errno = reason;
    return answer_without_agent(command);
}

int main(int count, char **arguments, char **environment)
{
    (void)count, (void)arguments, (void)mark[0];
    /* First of all: an upgrade may replace the files beside the program while standard input is awaited. */
    bool paths_known = read_paths();
    int fault = errno;
    const char *command = getenv("CNI_COMMAND");
    if (command == NULL)
        command = "";
    if (!gather_variables(environment))
        return fail(BAD_ENVIRONMENT, "the CNI_* variables are longer than 256 KiB altogether", "");

    input = request.data + request.length;
    ssize_t length = read_to_end(STDIN_FILENO, request.data + request.length, MAX_STDIN + 1, STDIN_MS);
    if (strcmp(command, "VERSION") == 0)
        return answer_version();
    if (length < 0)
        return fail(IO_FAILURE, "standard input cannot be read", strerror(errno));
    if (length > MAX_STDIN)
        return fail(IO_FAILURE, "standard input is longer than 1 MiB", "");
    request.length += (size_t)length;

    if (*encoding_fault != '\0')
        return fail(BAD_ENVIRONMENT, encoding_fault, "");
    if (!paths_known)
        return fail(IO_FAILURE, "the .path file beside the plugin is damaged: install the plugin again", strerror(fault));
    size_t output = 0;
    bool only_looks = strcmp(command, "STATUS") == 0 || strcmp(command, "CHECK") == 0;
    int64_t deadline = now_ms() + (only_looks ? LOOK_MS : REPLY_MS);
    ssize_t replied = ask_agent(deadline);
    int code = exit_code(replied, &output);
    if (code < 0)
        return answer_at_second_attempt(command, deadline);
    return answer(replied, output, code);
}
