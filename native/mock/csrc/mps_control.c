/* The mock's nvidia-cuda-mps-control: its start, and the front end that sends commands from stdin to the daemon.
 *
 * It does everything that a supervisor meets (options, folders, socket, lock, pid file, logs, commands, exit codes; the
 * manual page nvidia-cuda-mps-control(1) is the source) and nothing that a CUDA program meets: there is no CUDA here.
 * Rules of the node decide what goes wrong: "mps.start", "mps.run" and "mps.<command>" (docs/mock.md).
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mock.h"
#include "mps.h"
#include "programs.h"

#define PIECE 1024

bool mps_address(const struct mps_daemon *daemon, const char *name, void *address)
{
    struct sockaddr_un *to = address;
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (size_t)snprintf(to->sun_path, sizeof(to->sun_path), "%s/%s", daemon->pipe_folder, name) <
           sizeof(to->sun_path);
}

static bool read_folders(struct mps_daemon *daemon)
{
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *log = getenv("CUDA_MPS_LOG_DIRECTORY");
    const char *into[] = {pipe != NULL && *pipe != '\0' ? pipe : "/tmp/nvidia-mps",
                          log != NULL && *log != '\0' ? log : "/var/log/nvidia-mps"};
    return (size_t)snprintf(daemon->pipe_folder, MPS_PATH, "%s", into[0]) < MPS_PATH &&
           (size_t)snprintf(daemon->log_folder, MPS_PATH, "%s", into[1]) < MPS_PATH;
}

static bool send_all(int to, const char *data, size_t size)
{
    while (size > 0) {
        const ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        data += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Prints an answer up to the NUL that ends it; false where the daemon went away before. */
static bool print_answer(int from, size_t *printed)
{
    char piece[PIECE];
    for (*printed = 0;;) {
        const ssize_t got = recv(from, piece, sizeof(piece), 0);
        if (got <= 0)
            return false;
        const char *end = memchr(piece, '\0', (size_t)got);
        const size_t length = end != NULL ? (size_t)(end - piece) : (size_t)got;
        if (fwrite(piece, 1, length, stdout) != length || fflush(stdout) != 0)
            return false;
        *printed += length;
        if (end != NULL)
            return true;
    }
}

/* quit is synchronous: it comes back when the daemon is gone, which closes the connection. A refusal says something. */
static void wait_for_end(int from, const char *line, size_t printed)
{
    char piece[PIECE];
    if (printed == 0 && strncmp(line, "quit", 4) == 0 && strchr(" \t\n", line[4]) != NULL)
        while (recv(from, piece, sizeof(piece), 0) > 0)
            continue;
}

static int front_end(const struct mps_daemon *daemon)
{
    struct sockaddr_un address;
    char *line = NULL;
    size_t room = 0, printed = 0;
    int status = 0;
    const int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to < 0 || !mps_address(daemon, "control", &address) ||
        connect(to, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        printf("Cannot find MPS control daemon process\n");
        return 1;
    }
    while (getline(&line, &room, stdin) >= 0) {
        const size_t length = strcspn(line, "\n");
        line[length] = '\n'; /* also of a last line that had none: getline's room has space for its NUL */
        if (!send_all(to, line, length + 1) || !print_answer(to, &printed)) {
            printf("Lost the connection to the MPS control daemon\n");
            status = 1;
            break;
        }
        wait_for_end(to, line, printed);
    }
    free(line);
    close(to);
    return status;
}

static int usage(FILE *stream, int status)
{
    fprintf(stream, "nvidia-cuda-mps-control of the gpudra mock\n\n"
                    "  nvidia-cuda-mps-control -d | -f [-M | -multiuser-server]   the daemon, in the background or not\n"
                    "  nvidia-cuda-mps-control                               commands from stdin, one a line\n\n"
                    "  CUDA_MPS_PIPE_DIRECTORY (/tmp/nvidia-mps), CUDA_MPS_LOG_DIRECTORY (/var/log/nvidia-mps),\n"
                    "  CUDA_VISIBLE_DEVICES\n");
    return status;
}

static bool is_server(const char *name)
{
    const char *slash = strrchr(name, '/');
    return strcmp(slash != NULL ? slash + 1 : name, "nvidia-cuda-mps-server") == 0;
}

int main(int argc, char **argv)
{
    static struct mps_daemon daemon = {.percentage = 100.0, .priority = 0, .lock = -1, .sockets = {-1, -1}};
    bool start = false, background = false;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return usage(stdout, 0);
        else if (strcmp(argv[i], "-d") == 0)
            start = background = true;
        else if (strcmp(argv[i], "-f") == 0)
            start = true;
        else if (strcmp(argv[i], "-multiuser-server") == 0 || strcmp(argv[i], "-M") == 0)
            daemon.multiuser = true;
        else
            return usage(stderr, 1);
    }
    if (!read_folders(&daemon)) {
        fprintf(stderr, "CUDA_MPS_PIPE_DIRECTORY or CUDA_MPS_LOG_DIRECTORY is too long\n");
        return 1;
    }
    if (is_server(argv[0]))
        return mps_run_server(&daemon);
    if (!start)
        return front_end(&daemon);
    program_find_node();
    const nvmlReturn_t code = nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS);
    if (code == NVML_SUCCESS)
        return mps_serve(&daemon, background);
    fprintf(stderr, "Cannot start the MPS control daemon: %s\n", nvmlErrorString(code));
    return 1;
}
