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

static struct {
    pthread_mutex_t lock;
    unsigned int references;
    bool announced;
    int trace;
    const struct mock_node *node;
    size_t mapped;
    struct nvmlDevice_st *devices; /* one a GPU of the node */
    unsigned int *visible;         /* index -> position */
    unsigned int visible_count;
} mock = {.lock = PTHREAD_MUTEX_INITIALIZER, .trace = -1};

MOCK_EXPORT extern const int gpudra_mock_marker;
const int gpudra_mock_marker = 1;

const struct mock_node *mock_node(void)
{
    return mock.node;
}

static const struct mock_gpu *gpu_at(unsigned int position)
{
    const char *base = (const char *)mock.node;
    return (const struct mock_gpu *)(base + mock.node->gpu_offset + sizeof(struct mock_gpu) * position);
}

unsigned int mock_count(void)
{
    return mock.visible_count;
}

nvmlDevice_t mock_handle(unsigned int index)
{
    return index < mock.visible_count ? &mock.devices[mock.visible[index]] : NULL;
}

/* A handle is judged by its address: garbage must be an error, as in the real library, never a crash. */
static bool position_of(nvmlDevice_t device, unsigned int *position)
{
    const uintptr_t first = (uintptr_t)mock.devices, given = (uintptr_t)device;
    if (mock.node == NULL || given < first || (given - first) % sizeof(*device) != 0)
        return false;
    const uintptr_t at = (given - first) / sizeof(*device);
    if (at >= (uintptr_t)mock.node->gpu_count)
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
    for (*index = 0; *index < mock.visible_count; ++*index)
        if (mock.visible[*index] == position)
            return true;
    return false;
}

int mock_pair(size_t matrix_offset, nvmlDevice_t a, nvmlDevice_t b)
{
    unsigned int row, column;
    if (!position_of(a, &row) || !position_of(b, &column))
        return -1;
    return ((const unsigned char *)mock.node)[matrix_offset + (size_t)row * (size_t)mock.node->gpu_count + column];
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

static const struct mock_node *map_node(const char *path, size_t *size)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        complain("cannot open the node file %s", path);
        return NULL;
    }
    struct stat facts;
    void *memory = MAP_FAILED;
    if (fstat(file, &facts) == 0 && (size_t)facts.st_size >= sizeof(struct mock_node))
        memory = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        complain("%s is not a node file", path);
        return NULL;
    }
    const struct mock_node *node = memory;
    *size = (size_t)facts.st_size;
    if (memcmp(node->magic, MOCK_MAGIC, sizeof(node->magic)) == 0 && node->layout == MOCK_LAYOUT &&
        node->size == facts.st_size)
        return node;
    complain("%s was written by another version of the mock; make the node again", path);
    munmap(memory, *size);
    return NULL;
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

static nvmlReturn_t see_devices(const char *path)
{
    char root[PATH_MAX];
    if (!device_root(path, root, sizeof(root)))
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    const size_t count = (size_t)mock.node->gpu_count;
    mock.devices = calloc(count + 1, sizeof(*mock.devices));
    mock.visible = calloc(count + 1, sizeof(*mock.visible));
    if (mock.devices == NULL || mock.visible == NULL)
        return NVML_ERROR_MEMORY;
    mock.visible_count = 0;
    for (unsigned int i = 0; i < count; ++i) {
        mock.devices[i].position = i;
        if (node_exists(root, gpu_at(i)->minor))
            mock.visible[mock.visible_count++] = i;
    }
    return NVML_SUCCESS;
}

static void forget(void)
{
    free(mock.devices);
    free(mock.visible);
    mock.devices = NULL;
    mock.visible = NULL;
    mock.visible_count = 0;
    if (mock.node != NULL)
        munmap((void *)(uintptr_t)mock.node, mock.mapped);
    mock.node = NULL;
    if (mock.trace >= 0)
        close(mock.trace);
    mock.trace = -1;
}

static nvmlReturn_t load(void)
{
    const char *path = getenv("GPUDRA_MOCK_NODE");
    if (path == NULL || *path == '\0') {
        complain("%s is not set: this is a stand-in for libnvidia-ml.so.1 and knows no hardware", "GPUDRA_MOCK_NODE");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    mock.node = map_node(path, &mock.mapped);
    if (mock.node == NULL)
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    const char *trace = getenv("GPUDRA_MOCK_TRACE");
    if (trace != NULL && *trace != '\0')
        mock.trace = open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const char *quiet = getenv("GPUDRA_MOCK_QUIET");
    if (!mock.announced && (quiet == NULL || strcmp(quiet, "1") != 0))
        complain("this is not hardware, node %s", path);
    mock.announced = true;
    return see_devices(path);
}

/* nvmlInit*: the prologue cannot look at the rules of a node that is not mapped yet, so they are looked at here. */
static nvmlReturn_t rule(const char *function, nvmlDevice_t device);

nvmlReturn_t mock_open(void)
{
    pthread_mutex_lock(&mock.lock);
    nvmlReturn_t result = NVML_SUCCESS;
    if (mock.references == 0) {
        result = load();
        if (result == NVML_SUCCESS && __atomic_load_n(&mock.node->driver_loaded, __ATOMIC_RELAXED) == 0)
            result = NVML_ERROR_DRIVER_NOT_LOADED;
        if (result == NVML_SUCCESS)
            result = rule("nvmlInitWithFlags", NULL);
        if (result != NVML_SUCCESS)
            forget();
    }
    if (result == NVML_SUCCESS)
        ++mock.references;
    pthread_mutex_unlock(&mock.lock);
    return result;
}

nvmlReturn_t mock_close(void)
{
    pthread_mutex_lock(&mock.lock);
    const bool open = mock.references > 0;
    if (open && --mock.references == 0)
        forget();
    pthread_mutex_unlock(&mock.lock);
    return open ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
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

static nvmlReturn_t rule(const char *function, nvmlDevice_t device)
{
    const struct mock_rule *rules = (const struct mock_rule *)((const char *)mock.node + mock.node->rule_offset);
    unsigned int position = 0;
    const bool about_gpu = position_of(device, &position);
    for (int64_t i = 0; i < mock.node->rule_capacity; ++i) {
        const struct mock_rule *entry = &rules[i];
        if (__atomic_load_n(&entry->function[0], __ATOMIC_RELAXED) == 0 ||
            strncmp((const char *)entry->function, function, sizeof(entry->function)) != 0)
            continue;
        if (entry->gpu >= 0 && (!about_gpu || entry->gpu != (int64_t)position))
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
    if (write(mock.trace, line, (size_t)length) != length) {
        complain("the trace ends at %s: it cannot be written", function);
        close(mock.trace);
        mock.trace = -1;
    }
}

nvmlReturn_t mock_enter(const char *function, enum mock_kind kind, nvmlDevice_t device)
{
    if (mock.trace >= 0)
        trace(function, device);
    if (kind == MOCK_ANY_TIME)
        return NVML_SUCCESS;
    if (mock.node == NULL)
        return NVML_ERROR_UNINITIALIZED;
    if (__atomic_load_n(&mock.node->driver_loaded, __ATOMIC_RELAXED) == 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    const struct mock_gpu *gpu = kind == MOCK_DEVICE ? mock_gpu(device) : NULL;
    if (kind == MOCK_DEVICE && gpu == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t ruled = rule(function, device);
    if (ruled != NVML_SUCCESS)
        return ruled;
    return gpu != NULL && mock_lost(gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
