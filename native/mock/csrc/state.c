/* The node file in this process, which GPUs this process sees, and the prologue that every call goes through. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"

struct nvmlDevice_st {
    unsigned int position; /* in the node file */
};

/* A node that this process has opened. It stays mapped after the last shutdown: a call may be under way in a thread
 * that was given up, and it must find the memory it stands in when it wakes. */
struct opened {
    struct opened *next;
    const struct mock_node *node;
    dev_t device;
    ino_t inode;
    struct nvmlDevice_st *devices; /* one a GPU of the node */
    unsigned int *visible;         /* index -> position */
    unsigned int visible_count;
};

static struct {
    pthread_mutex_t lock;
    unsigned int references;
    bool announced;
    int trace;
    struct opened *all;
    struct opened *current; /* of the last init; only references tells whether NVML is initialised */
} mock = {.lock = PTHREAD_MUTEX_INITIALIZER, .trace = -1};

MOCK_EXPORT extern const int gpudra_mock_marker;
const int gpudra_mock_marker = 1;

const struct mock_node *mock_node(void)
{
    return mock.current->node;
}

static const struct mock_gpu *gpu_at(unsigned int position)
{
    const struct mock_node *node = mock_node();
    return (const struct mock_gpu *)((const char *)node + node->gpu_offset + sizeof(struct mock_gpu) * position);
}

unsigned int mock_count(void)
{
    return mock.current->visible_count;
}

nvmlDevice_t mock_handle(unsigned int index)
{
    const struct opened *now = mock.current;
    return index < now->visible_count ? &now->devices[now->visible[index]] : NULL;
}

/* A handle is judged by its address: garbage must be an error, as in the real library, never a crash. */
static bool position_of(nvmlDevice_t device, unsigned int *position)
{
    const uintptr_t first = (uintptr_t)mock.current->devices, given = (uintptr_t)device;
    if (given < first || (given - first) % sizeof(*device) != 0)
        return false;
    const uintptr_t at = (given - first) / sizeof(*device);
    if (at >= (uintptr_t)mock_node()->gpu_count)
        return false;
    *position = (unsigned int)at;
    return true;
}

const struct mock_gpu *mock_gpu(nvmlDevice_t device)
{
    unsigned int position;
    return position_of(device, &position) ? gpu_at(position) : NULL;
}

bool mock_index(nvmlDevice_t device, unsigned int *index)
{
    unsigned int position;
    if (!position_of(device, &position))
        return false;
    for (*index = 0; *index < mock.current->visible_count; ++*index)
        if (mock.current->visible[*index] == position)
            return true;
    return false;
}

int mock_pair(size_t matrix_offset, nvmlDevice_t a, nvmlDevice_t b)
{
    unsigned int row, column;
    if (!position_of(a, &row) || !position_of(b, &column))
        return -1;
    const struct mock_node *node = mock_node();
    return ((const unsigned char *)node)[matrix_offset + (size_t)row * (size_t)node->gpu_count + column];
}

bool mock_lost(const struct mock_gpu *gpu)
{
    return __atomic_load_n(&gpu->state, __ATOMIC_RELAXED) != 0;
}

nvmlReturn_t mock_text(const struct mock_text *text, char *out, unsigned int length)
{
    if (out == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (text->length < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const size_t have = (size_t)text->length;
    if (text->unterminated) {
        for (unsigned int i = 0; i < length; ++i)
            out[i] = have ? text->bytes[i % have] : '?';
        return NVML_SUCCESS;
    }
    if (have + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text->bytes, have);
    out[have] = '\0';
    return NVML_SUCCESS;
}

static void complain(const char *format, const char *detail)
{
    fprintf(stderr, "gpudra mock NVML: ");
    fprintf(stderr, format, detail);
    fputc('\n', stderr);
}

static const struct mock_node *map_node(int file, const struct stat *facts, const char *path)
{
    const size_t size = (size_t)facts->st_size;
    void *memory = MAP_FAILED;
    if (size >= sizeof(struct mock_node))
        memory = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        complain("%s is not a node file", path);
        return NULL;
    }
    const struct mock_node *node = memory;
    if (memcmp(node->magic, MOCK_MAGIC, sizeof(node->magic)) == 0 && node->layout == MOCK_LAYOUT &&
        node->size == facts->st_size)
        return node;
    complain("%s was written by another version of the mock; make the node again", path);
    munmap(memory, size);
    return NULL;
}

static struct opened *open_node(const char *path)
{
    struct stat facts;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &facts) != 0) {
        complain("cannot open the node file %s", path);
        if (file >= 0)
            close(file);
        return NULL;
    }
    struct opened *found = mock.all;
    while (found != NULL && (found->device != facts.st_dev || found->inode != facts.st_ino))
        found = found->next;
    const struct mock_node *node = found != NULL ? found->node : map_node(file, &facts, path);
    close(file);
    if (found != NULL || node == NULL)
        return found;
    struct opened *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = (struct opened){.next = mock.all, .node = node, .device = facts.st_dev, .inode = facts.st_ino};
    made->devices = calloc((size_t)node->gpu_count + 1, sizeof(*made->devices));
    made->visible = calloc((size_t)node->gpu_count + 1, sizeof(*made->visible));
    mock.all = made; /* kept even where memory ran out: nothing is ever taken off the list */
    return made->devices != NULL && made->visible != NULL ? made : NULL;
}

/* Where this process looks for device nodes: set, or the dev folder of the root that holds run/gpudra-mock/node. */
static bool device_root(const char *node_path, char *out, size_t size)
{
    const char *set = getenv("GPUDRA_MOCK_DEV");
    if (set != NULL && *set != '\0')
        return (size_t)snprintf(out, size, "%s", set) < size;
    char root[PATH_MAX];
    if ((size_t)snprintf(root, sizeof(root), "%s", node_path) >= sizeof(root))
        return false;
    for (int level = 0; level < 3; ++level) {
        char *slash = strrchr(root, '/');
        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    return (size_t)snprintf(out, size, "%s/dev", root) < size;
}

static bool node_exists(const char *root, int64_t minor)
{
    char path[PATH_MAX];
    struct stat facts;
    if (minor < 0) /* boards without a minor number have no node of their own: WSL */
        return true;
    return (size_t)snprintf(path, sizeof(path), "%s/nvidia%lld", root, (long long)minor) < sizeof(path) &&
           stat(path, &facts) == 0;
}

static nvmlReturn_t see_devices(struct opened *opened, const char *path)
{
    char root[PATH_MAX];
    if (!device_root(path, root, sizeof(root)))
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    mock.current = opened;
    opened->visible_count = 0;
    for (unsigned int i = 0; i < (unsigned int)opened->node->gpu_count; ++i) {
        opened->devices[i].position = i;
        if (node_exists(root, gpu_at(i)->minor))
            opened->visible[opened->visible_count++] = i;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t load(void)
{
    const char *path = getenv("GPUDRA_MOCK_NODE");
    if (path == NULL || *path == '\0') {
        complain("%s is not set: this is a stand-in for libnvidia-ml.so.1 and knows no hardware", "GPUDRA_MOCK_NODE");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    struct opened *opened = open_node(path);
    if (opened == NULL)
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    const char *quiet = getenv("GPUDRA_MOCK_QUIET");
    if (!mock.announced && (quiet == NULL || strcmp(quiet, "1") != 0))
        complain("this is not hardware, node %s", path);
    mock.announced = true;
    const char *trace = getenv("GPUDRA_MOCK_TRACE");
    if (mock.trace < 0 && trace != NULL && *trace != '\0')
        mock.trace = open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return see_devices(opened, path);
}

static bool driver_loaded(void)
{
    return __atomic_load_n(&mock_node()->driver_loaded, __ATOMIC_RELAXED) != 0;
}

static nvmlReturn_t rule(const char *function, nvmlDevice_t device, bool for_one_gpu);

nvmlReturn_t mock_open(const char *function)
{
    pthread_mutex_lock(&mock.lock);
    nvmlReturn_t result = mock.references == 0 ? load() : NVML_SUCCESS;
    if (result == NVML_SUCCESS && !driver_loaded())
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS)
        result = rule(function, NULL, false);
    if (result == NVML_SUCCESS)
        __atomic_add_fetch(&mock.references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mock.lock);
    return result;
}

nvmlReturn_t mock_close(void)
{
    pthread_mutex_lock(&mock.lock);
    nvmlReturn_t result = mock.references > 0 ? rule("nvmlShutdown", NULL, false) : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS)
        __atomic_sub_fetch(&mock.references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mock.lock);
    return result;
}

static void pause_for(int64_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, (milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* Serves the delay of a rule; one of -1 lasts until the rule is taken away. */
static void serve_delay(const struct mock_rule *entry)
{
    const int64_t delay = entry->delay_ms;
    if (delay > 0)
        pause_for(delay);
    while (delay < 0 && __atomic_load_n(&entry->function[0], __ATOMIC_RELAXED) != 0)
        pause_for(10);
}

/* The first rule for a function that fits; ``for_one_gpu`` leaves out those that are about all GPUs. */
static nvmlReturn_t rule(const char *function, nvmlDevice_t device, bool for_one_gpu)
{
    const struct mock_node *node = mock_node();
    const struct mock_rule *rules = (const struct mock_rule *)((const char *)node + node->rule_offset);
    unsigned int position = 0;
    const bool about_gpu = position_of(device, &position);
    const int64_t count = __atomic_load_n(&node->rule_count, __ATOMIC_ACQUIRE);
    for (int64_t i = 0; i < count && i < node->rule_capacity; ++i) {
        const struct mock_rule *entry = &rules[i];
        if (__atomic_load_n(&entry->function[0], __ATOMIC_RELAXED) == 0 ||
            strncmp((const char *)entry->function, function, sizeof(entry->function)) != 0)
            continue;
        if (entry->gpu < 0 ? for_one_gpu : !about_gpu || entry->gpu != (int64_t)position)
            continue;
        const int64_t code = entry->code;
        serve_delay(entry);
        if (code >= 0)
            return (nvmlReturn_t)code;
    }
    return NVML_SUCCESS;
}

static void trace(const char *function, nvmlDevice_t device)
{
    char line[128];
    unsigned int position = 0;
    const int about = position_of(device, &position) ? (int)position : -1;
    const int length = snprintf(line, sizeof(line), "%s %d\n", function, about);
    if (write(mock.trace, line, (size_t)length) != length)
        complain("%s is missing in the trace, which cannot be written", function);
}

nvmlReturn_t mock_enter(const char *function, enum mock_kind kind, nvmlDevice_t device)
{
    if (kind == MOCK_ANY_TIME)
        return NVML_SUCCESS; /* init and shutdown look at their rules under the lock */
    if (__atomic_load_n(&mock.references, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (mock.trace >= 0)
        trace(function, device);
    if (!driver_loaded())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    const struct mock_gpu *gpu = kind == MOCK_DEVICE ? mock_gpu(device) : NULL;
    if (kind == MOCK_DEVICE && gpu == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t ruled = rule(function, device, false);
    if (ruled != NVML_SUCCESS)
        return ruled;
    return gpu != NULL && mock_lost(gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t mock_reach(const char *function, nvmlDevice_t found)
{
    const nvmlReturn_t ruled = rule(function, found, true);
    if (ruled != NVML_SUCCESS)
        return ruled;
    return mock_lost(mock_gpu(found)) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
