/* nvidia-cuda-mps-server of the mock: a process that stands for one, started by the daemon, and nothing more.
 *
 * As on hardware there is one for a user (or for all, -multiuser-server), it runs under that user's id and it needs GPUs
 * that are there and whose compute mode lets anybody in. It ends with its daemon, however that ends: how NVIDIA's fares
 * when its daemon is killed is not known, and a test must not leave processes behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mock.h"
#include "mps.h"

/* The GPU of an entry of CUDA_VISIBLE_DEVICES: an ordinal among all that this process sees, or a UUID. */
static nvmlDevice_t device_of(const char *word, size_t length)
{
    char text[MPS_WORD], *end;
    nvmlDevice_t found = NULL;
    if (length == 0 || length >= sizeof(text))
        return NULL;
    memcpy(text, word, length);
    text[length] = '\0';
    const unsigned long ordinal = strtoul(text, &end, 10);
    if (*end == '\0')
        return ordinal < mock_count() ? mock_handle((unsigned int)ordinal) : NULL;
    return nvmlDeviceGetHandleByUUID(text, &found) == NVML_SUCCESS ? found : NULL;
}

/* Calls for the word of each device that the daemon may use, until one is what is looked for. */
typedef bool each_device(unsigned int ordinal, const char *word, size_t length, const void *wanted);

static bool for_devices(each_device *call, const void *wanted)
{
    const char *listed = getenv("CUDA_VISIBLE_DEVICES");
    char word[32];
    unsigned int ordinal = 0;
    if (listed == NULL) {
        for (; ordinal < mock_count(); ++ordinal) {
            const int length = snprintf(word, sizeof(word), "%u", ordinal);
            if (call(ordinal, word, (size_t)length, wanted))
                return true;
        }
        return false;
    }
    for (const char *at = listed; *at != '\0'; ++ordinal) {
        const size_t length = strcspn(at, ",");
        if (call(ordinal, at, length, wanted))
            return true;
        at += length + (at[length] == ',');
    }
    return false;
}

static bool is_device(unsigned int ordinal, const char *word, size_t length, const void *wanted)
{
    char *end, uuid[MPS_WORD];
    const char *text = wanted;
    const nvmlDevice_t device = device_of(word, length);
    const unsigned long number = strtoul(text, &end, 10);
    if (device == NULL)
        return false;
    if (*text != '\0' && *end == '\0')
        return number == ordinal;
    return nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) == NVML_SUCCESS && strcmp(uuid, text) == 0;
}

bool mps_knows_device(const char *device)
{
    return for_devices(is_device, device);
}

/* Whether a server could not use a device; a MIG device answers for its GPU's compute mode. */
static bool is_unusable(unsigned int ordinal, const char *word, size_t length, const void *wanted)
{
    const nvmlDevice_t device = device_of(word, length);
    (void)ordinal;
    (void)wanted;
    return device == NULL || mock_presence(device) != NVML_SUCCESS ||
           mock_gpu(device)->compute_mode == NVML_COMPUTEMODE_PROHIBITED;
}

static bool any_device(unsigned int ordinal, const char *word, size_t length, const void *wanted)
{
    (void)ordinal;
    (void)wanted;
    return device_of(word, length) != NULL;
}

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

int mps_run_server(const struct mps_daemon *daemon)
{
    const char *uid = getenv("GPUDRA_MOCK_MPS_UID");
    char path[MPS_PATH];
    sigset_t blocked, waited;
    if (uid != NULL && geteuid() == 0 && setuid((uid_t)strtoul(uid, NULL, 10)) != 0)
        return 1;
    const struct sigaction action = {.sa_handler = stop};
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &blocked, &waited);
    if (sigaction(SIGTERM, &action, NULL) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return 1;
    const char *parent = getenv("GPUDRA_MOCK_MPS_DAEMON");
    if (parent != NULL && getppid() != (pid_t)strtol(parent, NULL, 10))
        return 1; /* it died before its death could be told */
    if ((size_t)snprintf(path, sizeof(path), "%s/server.log", daemon->log_folder) >= sizeof(path))
        return 1;
    FILE *log = fopen(path, "ae");
    if (log != NULL) { /* a folder that the user may not write to costs the log only */
        fprintf(log, "[Server %d] Startup for user %d\n", (int)getpid(), (int)getuid());
        fclose(log);
    }
    sigdelset(&waited, SIGTERM);
    while (!stopped)
        (void)sigsuspend(&waited);
    return 0;
}

static void become_server(unsigned int uid, pid_t daemon)
{
    char path[MPS_PATH], number[16], parent[16];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length < 0)
        _exit(127);
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) + sizeof("/nvidia-cuda-mps-server") > sizeof(path))
        _exit(127);
    memcpy(slash, "/nvidia-cuda-mps-server", sizeof("/nvidia-cuda-mps-server"));
    snprintf(number, sizeof(number), "%u", uid);
    snprintf(parent, sizeof(parent), "%d", (int)daemon);
    if (setenv("GPUDRA_MOCK_MPS_UID", number, 1) == 0 && setenv("GPUDRA_MOCK_MPS_DAEMON", parent, 1) == 0)
        execl(path, path, (char *)NULL);
    _exit(127);
}

pid_t mps_start_server(struct mps_daemon *daemon, unsigned int uid, FILE *answer)
{
    struct mps_server *free_place = NULL;
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i) {
        struct mps_server *server = &daemon->servers[i];
        if (server->pid != 0 && (server->uid == uid || daemon->multiuser))
            return server->pid;
        if (server->pid == 0 && free_place == NULL)
            free_place = server;
    }
    if (free_place == NULL || !for_devices(any_device, NULL) || for_devices(is_unusable, NULL)) {
        fprintf(answer, "Failed to start an MPS server for user %u\n", uid);
        mps_log(daemon, "Failed to start a server for user %u: no usable GPU, or too many servers", uid);
        return 0;
    }
    const pid_t own = getpid();
    const pid_t pid = fork();
    if (pid == 0)
        become_server(uid, own);
    if (pid < 0) {
        fprintf(answer, "Failed to start an MPS server for user %u: %s\n", uid, strerror(errno));
        return 0;
    }
    *free_place = (struct mps_server){.pid = pid, .uid = uid, .percentage = daemon->percentage, .limits = daemon->limits};
    mps_log(daemon, "Starting new server %d for user %u", (int)pid, uid);
    return pid;
}

void mps_reap(struct mps_daemon *daemon)
{
    int status;
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i) {
        struct mps_server *server = &daemon->servers[i];
        if (server->pid == 0 || waitpid(server->pid, &status, WNOHANG) != server->pid)
            continue;
        mps_log(daemon, "Server %d exited with status %d", (int)server->pid,
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        server->pid = 0;
    }
}

/* Waits for a server that was told to stop, and kills it where it takes too long. */
static void see_off(pid_t pid, double patience_s)
{
    const double step_s = 0.01;
    double waited = 0.0;
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (patience_s >= 0.0 && waited >= patience_s)
            (void)kill(pid, SIGKILL);
        mock_pause((int64_t)(step_s * 1000.0));
        waited += step_s;
    }
}

void mps_stop_servers(struct mps_daemon *daemon)
{
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i)
        if (daemon->servers[i].pid != 0)
            (void)kill(daemon->servers[i].pid, SIGTERM);
    for (unsigned int i = 0; i < MPS_MAX_SERVERS; ++i) {
        if (daemon->servers[i].pid != 0)
            see_off(daemon->servers[i].pid, daemon->patience_s);
        daemon->servers[i].pid = 0;
    }
}
