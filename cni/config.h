/*
 * What the launcher reads of the network configuration when it answers alone. The agent decides what is
 * valid (cni/request.py), and no JSON parser is worth its size here.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NEWEST "1.1.0"
/* The configuration may say less, by "wait". A loaded node's agent starts in some 6 s, and the kubelet
 * tries again after 15 s. With REPLY_MS this is the 120 s after which runtimes give up. */
#define WAIT_SECONDS 10

/* The first "cniVersion" of the configuration: libcni sorts keys, so it comes before nested ones.
 * A wrong guess only changes the version of an error message. */
static const char *requested_version(const char *config)
{
    static char version[16];
    const char *at = strstr(config, "\"cniVersion\"");
    if (at == NULL)
        return NEWEST;
    at += strlen("\"cniVersion\"");
    at += strspn(at, " \t\r\n");
    if (*at++ != ':')
        return NEWEST;
    at += strspn(at, " \t\r\n");
    size_t length = *at == '"' ? strspn(at + 1, "0123456789.") : 0;
    if (length == 0 || length >= sizeof version || at[1 + length] != '"')
        return NEWEST;
    memcpy(version, at + 1, length);
    version[length] = '\0';
    return version;
}

/* The value of the configuration's own key, not of a key of that name further in; NULL without one. */
static const char *value_of(const char *config, const char *key)
{
    int depth = 0;
    for (const char *at = config; *at != '\0'; at++) {
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        if (*at != '"')
            continue;
        const char *name = ++at;
        while (*at != '"' && *at != '\0')
            at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
        if (*at == '\0')
            return NULL;
        const char *after = at + 1 + strspn(at + 1, " \t\r\n");
        if (depth == 1 && *after == ':' && strlen(key) == (size_t)(at - name) && memcmp(name, key, strlen(key)) == 0)
            return after + 1 + strspn(after + 1, " \t\r\n");
    }
    return NULL;
}

/* -1 if the configuration has a value that is none. */
static int seconds_to_wait(const char *config)
{
    const char *value = value_of(config, "wait");
    if (value == NULL)
        return WAIT_SECONDS;
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || digits > 2 || strchr(" \t\r\n,}", value[digits]) == NULL)
        return -1;
    int seconds = atoi(value);
    return seconds <= WAIT_SECONDS ? seconds : -1;
}
