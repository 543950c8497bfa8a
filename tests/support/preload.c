/* Stands before the C library's calls that change files: counts them, writes them down, fails them, or ends the process.
 *
 * What it does is read from a file that is mapped into every process (struct control, tests/support/preload.py), so
 * that a test changes it while the process runs. Only calls about paths below `under` count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, NAME = 8, MODE = 16, SIZE = 32, IOCTL = 64, BIND = 128, REMOVE = 256 };

struct control {
    int64_t armed;   /* count, and kill */
    int64_t count;   /* calls while armed */
    int64_t kill_at; /* the process ends before this call; 0: never */
    int64_t code;    /* errno of calls that fail; 0: none do */
    int64_t kinds;   /* which kinds of calls fail */
    int64_t torn;    /* a write that fails, or before which the process ends, has written a part */
    int64_t failed;  /* calls that failed */
    int64_t trace;   /* write down every call */
    char under[512];
    char beside[512]; /* a part of paths that do not count all the same */
    char match[512]; /* parts of the paths of calls that fail, with | between them */
    char log[512];   /* file for the trace */
};

static struct control *control;

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real) {                                                                                                       \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);                                                          \
    }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GPUDRA_PRELOAD_CONTROL");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    control = mapped == MAP_FAILED ? NULL : mapped;
}

static void whole(int folder, const char *path, char *out) {
    out[0] = 0;
    if (path && path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    char link[64], base[PATH_MAX];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) {
        return;
    }
    base[length] = 0;
    if (path) {
        snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
    } else {
        snprintf(out, PATH_MAX, "%.4000s", base);
    }
}

static void note(int kind, const char *path) {
    char line[PATH_MAX + 16];
    int length = snprintf(line, sizeof line, "%d %s\n", kind, path);
    int file = (int)syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        syscall(SYS_write, file, line, (size_t)length);
        syscall(SYS_close, file);
    }
}

enum { SECTOR = 512, END = -1 };

static void end(void) {
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

static int matches(const char *path) {
    char parts[sizeof control->match], *state = NULL;
    memcpy(parts, control->match, sizeof parts);
    for (char *part = strtok_r(parts, "|", &state); part; part = strtok_r(NULL, "|", &state)) {
        if (strstr(path, part)) {
            return 1;
        }
    }
    return 0;
}

/* 0: go on. END: write a part, and end. Else the errno with which the call is to fail. */
__attribute__((noinline)) static int passes(int kind, int folder, const char *path) {
    if (!control || (!control->armed && !control->code && !control->trace)) {
        return 0;
    }
    int saved = errno;
    char full[PATH_MAX];
    whole(folder, path, full);
    int code = 0;
    if (control->under[0] && strncmp(full, control->under, strlen(control->under)) == 0 &&
        !(control->beside[0] && strstr(full, control->beside))) {
        if (control->trace) {
            note(kind, full);
        }
        if (control->armed) {
            int64_t number = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
            if (number == control->kill_at && kind == WRITE && control->torn) {
                code = END;
            } else if (number == control->kill_at) {
                end();
            }
        }
        if (!code && control->code && (control->kinds & kind) && matches(full)) {
            __atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
            code = (int)control->code;
        }
    }
    errno = saved;
    return code;
}

#define PASS(kind, folder, path)                                                                                       \
    do {                                                                                                               \
        int code = passes(kind, folder, path);                                                                         \
        if (code) {                                                                                                    \
            errno = code;                                                                                              \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

#define CHANGES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))

static mode_t mode_of(int flags, va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
}

#define OPENS(name)                                                                                                    \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(int, name, const char *, int, ...)                                                                        \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        if (CHANGES(flags)) {                                                                                          \
            PASS(OPEN, AT_FDCWD, path);                                                                                \
        }                                                                                                              \
        return real(path, flags, mode);                                                                                \
    }

#define OPENS_AT(name)                                                                                                 \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        REAL(int, name, int, const char *, int, ...)                                                                   \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        if (CHANGES(flags)) {                                                                                          \
            PASS(OPEN, folder, path);                                                                                  \
        }                                                                                                              \
        return real(folder, path, flags, mode);                                                                        \
    }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

/* A kernel that sees that the process is to end has written whole sectors; a disk that is full may take any part. */
static size_t part_of(int code, size_t size) {
    return code == END ? size / 2 / SECTOR * SECTOR : size / 2;
}

static int is_file(int file) {
    struct stat facts;
    int saved = errno;
    int found = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
    errno = saved;
    return found;
}

/* Python's signal handler writes to a socket, on a small stack of its own that has no room for paths. */
ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t)
    int code = is_file(file) ? passes(WRITE, file, NULL) : 0;
    if (code) {
        if (control->torn && part_of(code, size)) {
            real(file, data, part_of(code, size));
        }
        if (code == END) {
            end();
        }
        errno = code;
        return -1;
    }
    return real(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t)
    int code = passes(WRITE, file, NULL);
    if (code) {
        if (control->torn && part_of(code, size)) {
            real(file, data, part_of(code, size), at);
        }
        if (code == END) {
            end();
        }
        errno = code;
        return -1;
    }
    return real(file, data, size, at);
}

#define ON_FILE(name, kind)                                                                                            \
    int name(int file) {                                                                                               \
        REAL(int, name, int)                                                                                           \
        PASS(kind, file, NULL);                                                                                        \
        return real(file);                                                                                             \
    }
ON_FILE(fsync, SYNC)
ON_FILE(fdatasync, SYNC)

#define ON_SIZE(name)                                                                                                  \
    int name(int file, off64_t size) {                                                                                 \
        REAL(int, name, int, off64_t)                                                                                  \
        PASS(SIZE, file, NULL);                                                                                        \
        return real(file, size);                                                                                       \
    }
ON_SIZE(ftruncate)
ON_SIZE(ftruncate64)

int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t)
    int code = passes(SIZE, file, NULL);
    return code ? code : real(file, at, size);
}

#define ON_PATH(name, kind)                                                                                            \
    int name(const char *path) {                                                                                       \
        REAL(int, name, const char *)                                                                                  \
        PASS(kind, AT_FDCWD, path);                                                                                    \
        return real(path);                                                                                             \
    }
ON_PATH(unlink, REMOVE)
ON_PATH(rmdir, REMOVE)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int)
    PASS(REMOVE, folder, path);
    return real(folder, path, flags);
}

#define ON_MODE(name, kind)                                                                                            \
    int name(const char *path, mode_t mode) {                                                                          \
        REAL(int, name, const char *, mode_t)                                                                          \
        PASS(kind, AT_FDCWD, path);                                                                                    \
        return real(path, mode);                                                                                       \
    }
ON_MODE(mkdir, NAME)
ON_MODE(chmod, MODE)

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t)
    PASS(NAME, folder, path);
    return real(folder, path, mode);
}

int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    REAL(int, fchmodat, int, const char *, mode_t, int)
    PASS(MODE, folder, path);
    return real(folder, path, mode, flags);
}

int fchmod(int file, mode_t mode) {
    REAL(int, fchmod, int, mode_t)
    PASS(MODE, file, NULL);
    return real(file, mode);
}

#define FROM_TO(name, kind)                                                                                            \
    int name(const char *from, const char *to) {                                                                       \
        REAL(int, name, const char *, const char *)                                                                    \
        PASS(kind, AT_FDCWD, to);                                                                                      \
        return real(from, to);                                                                                         \
    }
FROM_TO(rename, NAME)
FROM_TO(link, NAME)
FROM_TO(symlink, NAME)

int renameat(int from_folder, const char *from, int folder, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *)
    PASS(NAME, folder, to);
    return real(from_folder, from, folder, to);
}

int linkat(int from_folder, const char *from, int folder, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int)
    PASS(NAME, folder, to);
    return real(from_folder, from, folder, to, flags);
}

int symlinkat(const char *from, int folder, const char *to) {
    REAL(int, symlinkat, const char *, int, const char *)
    PASS(NAME, folder, to);
    return real(from, folder, to);
}

int bind(int file, const struct sockaddr *address, socklen_t size) {
    REAL(int, bind, int, const struct sockaddr *, socklen_t)
    if (address && address->sa_family == AF_UNIX && size > sizeof(sa_family_t)) {
        const struct sockaddr_un *named = (const struct sockaddr_un *)address;
        if (named->sun_path[0]) {
            char path[sizeof named->sun_path + 1] = {0};
            memcpy(path, named->sun_path, size - sizeof(sa_family_t));
            int descriptor, taken = 0;
            /* By way of a descriptor of the folder. */
            if (sscanf(path, "/proc/self/fd/%d/%n", &descriptor, &taken) == 1 && taken > 0) {
                PASS(BIND, descriptor, path + taken);
            } else {
                PASS(BIND, AT_FDCWD, path);
            }
        }
    }
    return real(file, address, size);
}

int ioctl(int file, unsigned long request, ...) {
    REAL(int, ioctl, int, unsigned long, ...)
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    PASS(IOCTL, file, NULL);
    return real(file, request, argument);
}
