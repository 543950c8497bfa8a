/* Stands before the C library in the agent: a wall clock that others set, and a gauge that others read.
 *
 * Both are in a page that is mapped from a file (struct page, tests/soak/soakpage.py). The gauge is read where the
 * process next asks for the time, which each of its threads does all the time and never within malloc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct page {
    int64_t offset;   /* seconds from the machine's wall clock to the agent's */
    int64_t asked;    /* counted up by whoever wants to know */
    int64_t answered; /* the question that `bytes` answers */
    int64_t bytes;    /* of the C heap that are in use; -1: this C library does not say */
};

static struct page *page;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SOAK_PAGE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    page = mapped == MAP_FAILED ? NULL : mapped;
}

static void answer(void) {
    static int busy;
    int64_t asked = __atomic_load_n(&page->asked, __ATOMIC_ACQUIRE);
    if (asked == __atomic_load_n(&page->answered, __ATOMIC_ACQUIRE) || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) {
        return;
    }
    struct mallinfo2 (*facts)(void) = (struct mallinfo2(*)(void))dlsym(RTLD_DEFAULT, "mallinfo2");
    page->bytes = -1;
    if (facts) {
        struct mallinfo2 found = facts();
        page->bytes = (int64_t)(found.uordblks + found.hblkhd);
    }
    __atomic_store_n(&page->answered, asked, __ATOMIC_RELEASE);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) {
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int code = next(which, now);
    if (page) {
        answer();
        if (code == 0 && which == CLOCK_REALTIME) {
            now->tv_sec += page->offset;
        }
    }
    return code;
}
