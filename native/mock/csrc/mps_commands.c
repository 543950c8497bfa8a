/* The commands of nvidia-cuda-mps-control(1), as a front end sends them: one a line, each with an answer.
 *
 * What a command changes holds for servers that start later; set_active_thread_percentage and set_device_pinned_mem_limit
 * change one server. The words of refusals are this mock's own; the manual page does not give NVIDIA's.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"
#include "mps.h"

#define MAX_WORDS 8

typedef void perform(struct mps_daemon *daemon, int argc, char **argv, FILE *answer);

static bool number(const char *text, double low, double high, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= low && *out <= high;
}

static struct mps_server *server_of(struct mps_daemon *daemon, const char *pid, FILE *answer)
{
    char *end;
    const long wanted = strtol(pid, &end, 10);
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i)
        if (*end == '\0' && wanted > 0 && daemon->servers[i].pid == (pid_t)wanted)
            return &daemon->servers[i];
    fprintf(answer, "Server %s not found\n", pid);
    return NULL;
}

static void give_percentage(double value, FILE *answer)
{
    fprintf(answer, "%.1f\n", value);
}

static bool set_percentage(double *place, const char *text, FILE *answer)
{
    double value;
    if (!number(text, 0.0, 100.0, &value) || value <= 0.0) {
        fprintf(answer, "Invalid active thread percentage: %s\n", text);
        return false;
    }
    *place = value;
    give_percentage(value, answer);
    return true;
}

static void get_default_percentage(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    (void)argv;
    give_percentage(daemon->percentage, answer);
}

static void set_default_percentage(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    if (set_percentage(&daemon->percentage, argv[1], answer))
        mps_log(daemon, "Default active thread percentage set to %.1f", daemon->percentage);
}

static void get_server_percentage(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    const struct mps_server *server = server_of(daemon, argv[1], answer);
    (void)argc;
    if (server != NULL)
        give_percentage(server->percentage, answer);
}

static void set_server_percentage(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    struct mps_server *server = server_of(daemon, argv[1], answer);
    (void)argc;
    if (server != NULL)
        (void)set_percentage(&server->percentage, argv[2], answer);
}

/* Digits and G or M, with a B or without: 2G, 512M, 1GB. */
static bool is_size(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits;
    return digits > 0 && digits < 12 && (*unit == 'G' || *unit == 'M' || *unit == 'g' || *unit == 'm') &&
           (unit[1] == '\0' || ((unit[1] == 'B' || unit[1] == 'b') && unit[2] == '\0'));
}

static struct mps_limit *limit_of(struct mps_limits *limits, const char *device)
{
    for (unsigned int i = 0; i < limits->count; ++i)
        if (strcmp(limits->all[i].device, device) == 0)
            return &limits->all[i];
    return NULL;
}

static void set_limit(struct mps_daemon *daemon, struct mps_limits *limits, const char *device, const char *value,
                      FILE *answer)
{
    struct mps_limit *limit = limit_of(limits, device);
    if (!mps_knows_device(device)) {
        fprintf(answer, "Invalid device: %s\n", device);
        return;
    }
    if (!is_size(value)) {
        fprintf(answer, "Invalid pinned memory limit: %s\n", value);
        return;
    }
    if (limit == NULL && limits->count == MPS_MAX_LIMITS) {
        fprintf(answer, "Too many devices with a pinned memory limit\n");
        return;
    }
    if (limit == NULL)
        limit = &limits->all[limits->count++];
    snprintf(limit->device, sizeof(limit->device), "%s", device);
    snprintf(limit->value, sizeof(limit->value), "%s", value);
    mps_log(daemon, "Pinned memory limit of device %s set to %s", device, value);
}

static void give_limit(struct mps_limits *limits, const char *device, FILE *answer)
{
    const struct mps_limit *limit = limit_of(limits, device);
    if (!mps_knows_device(device))
        fprintf(answer, "Invalid device: %s\n", device);
    else
        fprintf(answer, "%s\n", limit != NULL ? limit->value : "0G");
}

static void set_default_limit(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    set_limit(daemon, &daemon->limits, argv[1], argv[2], answer);
}

static void get_default_limit(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    give_limit(&daemon->limits, argv[1], answer);
}

static void set_server_limit(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    struct mps_server *server = server_of(daemon, argv[1], answer);
    (void)argc;
    if (server != NULL)
        set_limit(daemon, &server->limits, argv[2], argv[3], answer);
}

static void get_server_limit(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    struct mps_server *server = server_of(daemon, argv[1], answer);
    (void)argc;
    if (server != NULL)
        give_limit(&server->limits, argv[2], answer);
}

static void set_priority(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    double value;
    (void)argc;
    if (!number(argv[1], 0.0, 1.0, &value) || (value > 0.0 && value < 1.0))
        fprintf(answer, "Invalid client priority: %s\n", argv[1]);
    else
        daemon->priority = (unsigned int)value;
}

static void get_priority(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    (void)argv;
    fprintf(answer, "%u\n", daemon->priority);
}

static void list_servers(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    (void)argv;
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i)
        if (daemon->servers[i].pid != 0)
            fprintf(answer, "%d\n", (int)daemon->servers[i].pid);
}

/* No CUDA, no clients: the list of a server that stands is empty. */
static void list_clients(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    (void)argc;
    (void)server_of(daemon, argv[1], answer);
}

static void start_server(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    double uid;
    (void)argc;
    if (strcmp(argv[1], "-uid") != 0 || !number(argv[2], 0.0, 4294967294.0, &uid))
        fprintf(answer, "Usage: start_server -uid <user id>\n");
    else
        (void)mps_start_server(daemon, (unsigned int)uid, answer);
}

static void shutdown_server(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    struct mps_server *server = server_of(daemon, argv[1], answer);
    const bool forced = argc > 2 && strcmp(argv[2], "-f") == 0;
    if (server == NULL)
        return;
    mps_log(daemon, "Server %d is shut down%s", (int)server->pid, forced ? " by force" : "");
    (void)kill(server->pid, forced ? SIGKILL : SIGTERM); /* gone already: mps_reap notices */
}

static void quit(struct mps_daemon *daemon, int argc, char **argv, FILE *answer)
{
    daemon->patience_s = -1.0;
    if (argc > 1 && (argc != 3 || strcmp(argv[1], "-t") != 0 || !number(argv[2], 0.0, 1e6, &daemon->patience_s)))
        fprintf(answer, "Usage: quit [-t <timeout>]\n");
    else
        daemon->quitting = true;
}

static const struct {
    const char *name;
    int least, most; /* words after it */
    perform *call;
} commands[] = {
    {"get_server_list", 0, 0, list_servers},
    {"start_server", 2, 2, start_server},
    {"shutdown_server", 1, 2, shutdown_server},
    {"get_client_list", 1, 1, list_clients},
    {"quit", 0, 2, quit},
    {"get_default_active_thread_percentage", 0, 0, get_default_percentage},
    {"set_default_active_thread_percentage", 1, 1, set_default_percentage},
    {"get_active_thread_percentage", 1, 1, get_server_percentage},
    {"set_active_thread_percentage", 2, 2, set_server_percentage},
    {"get_default_device_pinned_mem_limit", 1, 1, get_default_limit},
    {"set_default_device_pinned_mem_limit", 2, 2, set_default_limit},
    {"get_device_pinned_mem_limit", 2, 2, get_server_limit},
    {"set_device_pinned_mem_limit", 3, 3, set_server_limit},
    {"get_default_client_priority", 0, 0, get_priority},
    {"set_default_client_priority", 1, 1, set_priority},
};

static int split(char *line, char **words)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t\r\n", &rest); word != NULL && count < MAX_WORDS;
         word = strtok_r(NULL, " \t\r\n", &rest))
        words[count++] = word;
    return count;
}

/* Whether a rule of the node lets a command fail; one that hangs does not come back before it is taken away. */
static bool refused(const char *name, FILE *answer)
{
    char rule[64];
    snprintf(rule, sizeof(rule), "mps.%s", name);
    const nvmlReturn_t code = mock_rule(rule, NULL, false);
    if (code != NVML_SUCCESS)
        fprintf(answer, "Failed to %s: %s\n", name, nvmlErrorString(code));
    return code != NVML_SUCCESS;
}

void mps_command(struct mps_daemon *daemon, char *line, FILE *answer)
{
    char *words[MAX_WORDS];
    const int count = split(line, words);
    if (count == 0)
        return;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); ++i) {
        if (strcmp(words[0], commands[i].name) != 0)
            continue;
        if (count - 1 < commands[i].least || count - 1 > commands[i].most)
            fprintf(answer, "%s takes %d to %d arguments\n", words[0], commands[i].least, commands[i].most);
        else if (!refused(words[0], answer))
            commands[i].call(daemon, count, words, answer);
        return;
    }
    fprintf(answer, "Unknown command: %s\n", words[0]);
    mps_log(daemon, "Unknown command: %s", words[0]);
}
