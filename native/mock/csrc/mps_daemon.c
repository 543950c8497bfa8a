/* The daemon: folders, lock, sockets and logs as NVIDIA's leaves them, and the loop that answers front ends.
 *
 *     <pipe folder>/control             the socket that front ends and CUDA programs connect to
 *     <pipe folder>/control_privileged  the same, for the daemon's user alone
 *     <pipe folder>/control_lock        held (flock) while a daemon runs
 *     <pipe folder>/nvidia-cuda-mps-control.pid
 *     <log folder>/control.log, server.log
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"
#include "mps.h"

#define LOOK_AROUND_MS 50 /* how late a rule of the node, a signal or the end of a server is noticed at most */
#define MAX_FRONT_ENDS 16
#define LINE 1024

struct front_end {
    int file; /* -1: none */
    char line[LINE];
    size_t length;
};

static volatile sig_atomic_t terminated;

static void terminate(int number)
{
    (void)number;
    terminated = 1;
}

void mps_log(struct mps_daemon *daemon, const char *format, ...)
{
    struct timespec now;
    struct tm local;
    char stamp[32];
    va_list arguments;
    FILE *log = daemon->log != NULL ? daemon->log : stdout;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &local);
    fprintf(log, "[%s.%03ld Control %5d] ", stamp, now.tv_nsec / 1000000, (int)getpid());
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fflush(log);
}

static int complain(const char *what, const char *path)
{
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    return 1;
}

static bool in_folder(char *out, const char *folder, const char *name)
{
    return (size_t)snprintf(out, MPS_PATH, "%s/%s", folder, name) < MPS_PATH;
}

static bool make_folder(const char *path)
{
    struct stat facts;
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
    return false;
}

static int listen_at(struct mps_daemon *daemon, const char *name, mode_t mode)
{
    struct sockaddr_un address;
    const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0)
        return -1;
    if (!mps_address(daemon, name, &address))
        errno = ENAMETOOLONG;
    else if ((unlink(address.sun_path) == 0 || errno == ENOENT) &&
             bind(file, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
             chmod(address.sun_path, mode) == 0 && listen(file, MAX_FRONT_ENDS) == 0)
        return file;
    const int error = errno;
    close(file);
    errno = error;
    return -1;
}

/* The lock tells a daemon that runs from the files of one that was killed. */
static int take_lock(struct mps_daemon *daemon)
{
    char path[MPS_PATH];
    if (!in_folder(path, daemon->pipe_folder, "control_lock"))
        return complain("Cannot lock", daemon->pipe_folder);
    daemon->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (daemon->lock < 0)
        return complain("Cannot open", path);
    if (flock(daemon->lock, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return complain("Cannot lock", path);
    printf("An instance of this daemon is already running\n");
    return 1;
}

static int prepare(struct mps_daemon *daemon)
{
    const nvmlReturn_t code = mock_rule("mps.start", NULL, false);
    if (code != NVML_SUCCESS) {
        fprintf(stderr, "Cannot start the MPS control daemon: %s\n", nvmlErrorString(code));
        return 1;
    }
    if (!make_folder(daemon->pipe_folder))
        return complain("Cannot create MPS pipe directory", daemon->pipe_folder);
    if (!make_folder(daemon->log_folder))
        return complain("Cannot create MPS log directory", daemon->log_folder);
    if (take_lock(daemon) != 0)
        return 1;
    daemon->sockets[0] = listen_at(daemon, "control", 0666);
    if (daemon->sockets[0] >= 0)
        daemon->sockets[1] = listen_at(daemon, "control_privileged", 0700);
    return daemon->sockets[1] >= 0 ? 0 : complain("Cannot listen in MPS pipe directory", daemon->pipe_folder);
}

static void leave_terminal(void)
{
    const int nothing = open("/dev/null", O_RDWR);
    (void)setsid(); /* fails for a leader only, and a fresh child is none */
    for (int file = 0; nothing >= 0 && file < 3; ++file)
        (void)dup2(nothing, file);
    if (nothing > 2)
        close(nothing);
}

/* Under another name first: nobody reads half of it. */
static void write_pid(struct mps_daemon *daemon)
{
    char path[MPS_PATH], fresh[MPS_PATH];
    if (!in_folder(path, daemon->pipe_folder, "nvidia-cuda-mps-control.pid") ||
        !in_folder(fresh, daemon->pipe_folder, "nvidia-cuda-mps-control.pid.new"))
        return;
    FILE *file = fopen(fresh, "we");
    const bool written = file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0;
    if ((file != NULL && fclose(file) != 0) || !written || rename(fresh, path) != 0)
        mps_log(daemon, "Cannot write %s: %s", path, strerror(errno));
}

static void open_log(struct mps_daemon *daemon)
{
    char path[MPS_PATH];
    if (!daemon->foreground && in_folder(path, daemon->log_folder, "control.log"))
        daemon->log = fopen(path, "ae");
    mps_log(daemon, "Starting control daemon using socket %s/control", daemon->pipe_folder);
    mps_log(daemon, "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s",
            daemon->pipe_folder);
    write_pid(daemon);
}

/* What NVIDIA's leaves behind it: the lock file and the logs. */
static void tidy(struct mps_daemon *daemon)
{
    static const char *const names[] = {"control", "control_privileged", "nvidia-cuda-mps-control.pid"};
    char path[MPS_PATH];
    mps_stop_servers(daemon);
    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); ++i)
        if (in_folder(path, daemon->pipe_folder, names[i]))
            (void)unlink(path); /* somebody else took it away: as good */
    mps_log(daemon, "Exit with status 0");
    close(daemon->lock);
}

static bool answer_line(struct mps_daemon *daemon, struct front_end *to)
{
    char *text = NULL;
    size_t size = 0;
    FILE *answer = open_memstream(&text, &size);
    if (answer == NULL)
        return false;
    mps_command(daemon, to->line, answer);
    const bool whole = fclose(answer) == 0;
    if (daemon->quitting)
        tidy(daemon);
    const bool sent = whole && send(to->file, text, size + 1, MSG_NOSIGNAL) == (ssize_t)size + 1;
    free(text);
    return sent;
}

/* Takes what a front end sent; false where it is gone. A line that is too long for any command is cut. */
static bool hear(struct mps_daemon *daemon, struct front_end *from)
{
    char got[LINE];
    const ssize_t count = recv(from->file, got, sizeof(got), 0);
    for (ssize_t i = 0; i < count; ++i) {
        if (got[i] != '\n') {
            if (from->length + 1 < sizeof(from->line))
                from->line[from->length++] = got[i];
            continue;
        }
        from->line[from->length] = '\0';
        from->length = 0;
        if (!answer_line(daemon, from))
            return false;
    }
    return count > 0;
}

static void welcome(struct mps_daemon *daemon, int listener, struct front_end *all)
{
    const int file = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    for (unsigned int i = 0; i < MAX_FRONT_ENDS && file >= 0; ++i)
        if (all[i].file < 0) {
            all[i] = (struct front_end){.file = file};
            mps_log(daemon, "Accepting connection...");
            return;
        }
    if (file >= 0)
        close(file);
}

static void look(struct mps_daemon *daemon, struct front_end *all)
{
    struct pollfd files[2 + MAX_FRONT_ENDS];
    for (unsigned int i = 0; i < 2 + MAX_FRONT_ENDS; ++i)
        files[i] = (struct pollfd){.fd = i < 2 ? daemon->sockets[i] : all[i - 2].file, .events = POLLIN};
    if (poll(files, 2 + MAX_FRONT_ENDS, LOOK_AROUND_MS) <= 0)
        return;
    for (unsigned int i = 2; i < 2 + MAX_FRONT_ENDS; ++i)
        if (files[i].revents != 0 && !hear(daemon, &all[i - 2])) {
            close(all[i - 2].file);
            all[i - 2].file = -1;
        }
    for (unsigned int i = 0; i < 2; ++i)
        if (files[i].revents != 0)
            welcome(daemon, daemon->sockets[i], all);
}

static int run(struct mps_daemon *daemon, int caller)
{
    static struct front_end all[MAX_FRONT_ENDS];
    const struct sigaction action = {.sa_handler = terminate}, ignore = {.sa_handler = SIG_IGN};
    for (unsigned int i = 0; i < MAX_FRONT_ENDS; ++i)
        all[i].file = -1;
    if (sigaction(SIGTERM, &action, NULL) != 0 || sigaction(SIGINT, &action, NULL) != 0 ||
        sigaction(SIGPIPE, &ignore, NULL) != 0) /* a caller that does not wait, a log that nobody reads */
        return 1;
    open_log(daemon);
    if (caller >= 0) {
        if (write(caller, "", 1) != 1)
            mps_log(daemon, "The caller did not wait for the start");
        close(caller);
    }
    while (!daemon->quitting && !terminated) {
        look(daemon, all);
        mps_reap(daemon);
        if (mock_rule("mps.run", NULL, false) != NVML_SUCCESS)
            (void)raise(SIGKILL); /* a crash: nothing is tidied up */
        if (access(mock_path(), F_OK) != 0)
            terminated = 1; /* the machine is gone */
    }
    if (!daemon->quitting)
        tidy(daemon);
    return 0;
}

/* In the background the caller goes on once front ends can connect, as the manual page has it. */
static int serve_in_background(struct mps_daemon *daemon)
{
    int ready[2];
    char byte;
    if (pipe2(ready, O_CLOEXEC) != 0)
        return complain("Cannot start the MPS control daemon in", daemon->pipe_folder);
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0)
        return complain("Cannot start the MPS control daemon in", daemon->pipe_folder);
    if (child > 0) {
        close(ready[1]);
        return read(ready[0], &byte, 1) == 1 ? 0 : 1;
    }
    close(ready[0]);
    leave_terminal();
    return run(daemon, ready[1]);
}

int mps_serve(struct mps_daemon *daemon, bool background)
{
    daemon->foreground = !background;
    if (prepare(daemon) != 0)
        return 1;
    return background ? serve_in_background(daemon) : run(daemon, -1);
}
