/*
 * Finds variables that no agent would accept (CNI specification 1.1.0, section 2, "Parameters").
 *
 * The agent decides, by cni/request.py. This copy of its rules is for the time when it is away, so
 * that a request which can never succeed is neither retried nor kept. A test compares the two.
 */
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        unsigned char lead = *at++;
        int more = lead < 0x80 ? 0 : lead < 0xC2 ? -1 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : -1;
        /* The byte after the lead excludes overlong forms, surrogates and what is beyond U+10FFFF. */
        unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (more < 0)
            return false;
        for (; more > 0; more--, at++, least = 0x80, most = 0xBF)
            if (*at < least || *at > most)
                return false;
    }
    return true;
}

static bool is_name(const char *text)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    static const char further[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return strspn(text, first) > 0 && text[strspn(text, further)] == '\0';
}

static bool is_ifname(const char *text)
{
    static const char *const reserved[] = {".", "..", "all", "default"};
    for (size_t each = 0; each < sizeof reserved / sizeof *reserved; each++)
        if (strcmp(text, reserved[each]) == 0)
            return false;
    if (strlen(text) >= IFNAMSIZ)
        return false;
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text > '~' || strchr("/:%", *text) != NULL)
            return false;
    return true;
}

static bool is_absolute(const char *text)
{
    return *text == '/';
}

static const struct {
    const char *name;
    const char *verbs;
    bool (*is_valid)(const char *);
} required[] = {
    {"CNI_CONTAINERID", "ADD DEL CHECK", is_name},
    {"CNI_NETNS", "ADD CHECK", is_absolute},
    {"CNI_IFNAME", "ADD DEL CHECK", is_ifname},
    {"CNI_PATH", "GC", NULL},
};

static bool is_verb(const char *command)
{
    static const char *const verbs[] = {"ADD", "DEL", "CHECK", "GC", "STATUS"};
    for (size_t each = 0; each < sizeof verbs / sizeof *verbs; each++)
        if (strcmp(command, verbs[each]) == 0)
            return true;
    return false;
}

/* Says which variables no agent would accept; false if there are none. */
static bool find_variable_faults(const char *command, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "required variables missing or malformed: ");
    const size_t none = length;
    if (!is_verb(command)) {
        snprintf(text + length, size - length, "CNI_COMMAND");
        return true;
    }
    for (size_t each = 0; each < sizeof required / sizeof *required; each++) {
        const char *value = getenv(required[each].name);
        if (strstr(required[each].verbs, command) == NULL)
            continue;
        if (value == NULL || *value == '\0' || (required[each].is_valid != NULL && !required[each].is_valid(value)))
            length += (size_t)snprintf(text + length, size - length, "%s%s", length > none ? ", " : "", required[each].name);
    }
    return length > none;
}
