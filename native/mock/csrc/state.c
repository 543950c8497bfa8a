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
    int64_t plugged;       /* which GPU at that place the session knows: one plugged in later is another */
};

/* A node that this process has opened. It stays mapped after the last shutdown: a call may be under way in a thread
 * that was given up, and it must find the memory it stands in when it wakes. */
struct opened {
    struct opened *next;
    struct mock_node *node;
    bool writable;
    char *path, *root;
    int64_t driver_generation; /* that the session was opened under */
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

struct mock_node *mock_writable_node(void)
{
    return mock.current->writable ? mock.current->node : NULL;
}

const char *mock_path(void)
{
    return mock.current->path;
}

const char *mock_root(void)
{
    return mock.current->root;
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

bool mock_position(nvmlDevice_t device, unsigned int *position)
{
    return position_of(device, position) || mock_is_instance_handle(device, position);
}

nvmlDevice_t mock_device_at(unsigned int position)
{
    return position < (unsigned int)mock_node()->gpu_count ? &mock.current->devices[position] : NULL;
}

const struct mock_gpu *mock_gpu(nvmlDevice_t device)
{
    unsigned int position;
    return mock_position(device, &position) ? gpu_at(position) : NULL;
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

const char *mock_node_path(void)
{
    return mock.current->path;
}

enum { WORKING, LOST, UNPLUGGED, SILENT };

nvmlReturn_t mock_presence(nvmlDevice_t device)
{
    unsigned int position;
    if (!mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    while (__atomic_load_n(&gpu_at(position)->state, __ATOMIC_RELAXED) == SILENT)
        mock_pause(10);
    return mock_gone(position) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

bool mock_gone(unsigned int position)
{
    const int64_t state = __atomic_load_n(&gpu_at(position)->state, __ATOMIC_RELAXED);
    return state == LOST || state == UNPLUGGED ||
           __atomic_load_n(&gpu_at(position)->plugged, __ATOMIC_RELAXED) != mock.current->devices[position].plugged;
}

nvmlReturn_t mock_set(const int64_t *field, int64_t value)
{
    struct mock_node *node = mock_writable_node();
    if (node == NULL)
        return NVML_ERROR_NO_PERMISSION;
    int64_t *place = (int64_t *)((char *)node + ((const char *)field - (const char *)mock_node()));
    __atomic_store_n(place, value, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
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

static struct mock_node *map_node(int file, const struct stat *facts, const char *path, bool writable)
{
    const size_t size = (size_t)facts->st_size;
    void *memory = MAP_FAILED;
    if (size >= sizeof(struct mock_node))
        memory = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        complain("%s is not a node file", path);
        return NULL;
    }
    struct mock_node *node = memory;
    if (memcmp(node->magic, MOCK_MAGIC, sizeof(node->magic)) == 0 && node->layout == MOCK_LAYOUT &&
        node->size == facts->st_size)
        return node;
    complain("%s was written by another version of the mock; make the node again", path);
    munmap(memory, size);
    return NULL;
}

/* Only a file that can be written lets this process make and destroy instances: a container gets it read-only. */
static int open_file(const char *path, bool *writable)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    *writable = file >= 0;
    return *writable ? file : open(path, O_RDONLY | O_CLOEXEC);
}

/* The root that holds run/gpudra-mock/node: three folders up. */
static void cut_to_root(char *path)
{
    for (int level = 0; level < 3; ++level) {
        char *slash = strrchr(path, '/');
        *(slash != NULL ? slash : path) = '\0';
    }
}

static struct opened *remember(struct mock_node *node, const struct stat *facts, const char *path, bool writable)
{
    struct opened *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = (struct opened){.next = mock.all, .node = node, .device = facts->st_dev, .inode = facts->st_ino};
    made->writable = writable;
    made->devices = calloc((size_t)node->gpu_count + 1, sizeof(*made->devices));
    made->visible = calloc((size_t)node->gpu_count + 1, sizeof(*made->visible));
    made->path = strdup(path);
    made->root = strdup(path);
    mock.all = made; /* kept even where memory ran out */
    if (made->root != NULL)
        cut_to_root(made->root);
    return made->devices != NULL && made->visible != NULL && made->path != NULL && made->root != NULL ? made : NULL;
}

static struct opened *open_node(const char *path)
{
    struct stat facts;
    bool writable;
    const int file = open_file(path, &writable);
    if (file < 0 || fstat(file, &facts) != 0) {
        complain("cannot open the node file %s", path);
        if (file >= 0)
            close(file);
        return NULL;
    }
    struct opened *found = mock.all;
    while (found != NULL && (found->device != facts.st_dev || found->inode != facts.st_ino))
        found = found->next;
    struct mock_node *node = found != NULL ? found->node : map_node(file, &facts, path, writable);
    close(file);
    if (found != NULL || node == NULL)
        return found;
    return remember(node, &facts, path, writable);
}

/* Where this process looks for device nodes: set, or the dev folder of the node's root. */
static bool device_root(const struct opened *opened, char *out, size_t size)
{
    const char *set = getenv("GPUDRA_MOCK_DEV");
    if (set != NULL && *set != '\0')
        return (size_t)snprintf(out, size, "%s", set) < size;
    return (size_t)snprintf(out, size, "%s/dev", opened->root) < size;
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

static nvmlReturn_t see_devices(struct opened *opened)
{
    char root[PATH_MAX];
    if (!device_root(opened, root, sizeof(root)))
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    mock.current = opened;
    opened->driver_generation = __atomic_load_n(&opened->node->driver_generation, __ATOMIC_RELAXED);
    opened->visible_count = 0;
    for (unsigned int i = 0; i < (unsigned int)opened->node->gpu_count; ++i) {
        opened->devices[i].position = i;
        opened->devices[i].plugged = __atomic_load_n(&gpu_at(i)->plugged, __ATOMIC_RELAXED);
        const bool plugged = __atomic_load_n(&gpu_at(i)->state, __ATOMIC_RELAXED) != UNPLUGGED;
        if (plugged && node_exists(root, gpu_at(i)->minor))
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
    return see_devices(opened);
}

nvmlReturn_t mock_session(void)
{
    const struct mock_node *node = mock_node();
    if (__atomic_load_n(&node->driver_loaded, __ATOMIC_RELAXED) == 0 ||
        __atomic_load_n(&node->driver_generation, __ATOMIC_RELAXED) != mock.current->driver_generation)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    const bool mismatch = __atomic_load_n(&node->version_mismatch, __ATOMIC_RELAXED) == 1;
    return mismatch ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_SUCCESS;
}

/* Whoever unloads the library leaves the node mapped, because a call that was given up may still be in it. It then costs
 * address space and no memory: pages come back from the file when somebody reads them after all. */
static void rest(const struct opened *opened)
{
    (void)madvise(opened->node, (size_t)opened->node->size, MADV_DONTNEED);
}

/* An init has failed, and there will be no shutdown. While the driver is gone it is tried again and again, by a library
 * that is loaded anew each time: where no session was before in this one, no call can be in the node. */
static void forget(bool first)
{
    struct opened *opened = mock.all;
    if (opened == NULL)
        return;
    if (!first) {
        if (mock.current != NULL)
            rest(mock.current);
        return;
    }
    mock.all = mock.current = NULL;
    munmap(opened->node, (size_t)opened->node->size);
    free(opened->devices);
    free(opened->visible);
    free(opened->path);
    free(opened->root);
    free(opened);
}

nvmlReturn_t mock_open(const char *function)
{
    pthread_mutex_lock(&mock.lock);
    const bool first = mock.all == NULL;
    nvmlReturn_t result = mock.references == 0 ? load() : NVML_SUCCESS;
    if (result == NVML_SUCCESS)
        result = mock_session();
    if (result == NVML_SUCCESS)
        result = mock_rule(function, NULL, false);
    if (result == NVML_SUCCESS)
        __atomic_add_fetch(&mock.references, 1, __ATOMIC_RELEASE);
    else if (mock.references == 0)
        forget(first);
    pthread_mutex_unlock(&mock.lock);
    return result;
}

nvmlReturn_t mock_close(void)
{
    pthread_mutex_lock(&mock.lock);
    nvmlReturn_t result = mock.references > 0 ? mock_rule("nvmlShutdown", NULL, false) : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS && __atomic_sub_fetch(&mock.references, 1, __ATOMIC_RELEASE) == 0) {
        mock_free_event_sets();
        rest(mock.current);
    }
    pthread_mutex_unlock(&mock.lock);
    return result;
}

static void trace(const char *function, nvmlDevice_t device)
{
    char line[128];
    unsigned int position = 0;
    const int about = mock_position(device, &position) ? (int)position : -1;
    const int length = snprintf(line, sizeof(line), "%s %d\n", function, about);
    if (write(mock.trace, line, (size_t)length) != length)
        complain("%s is missing in the trace, which cannot be written", function);
}

/* A handle of the wrong kind is INVALID_ARGUMENT, but a call about GPUs that gets a MIG device is NOT_SUPPORTED. */
static nvmlReturn_t check_handle(enum mock_kind kind, nvmlDevice_t device)
{
    unsigned int position;
    struct mock_instance instance;
    const bool gpu = position_of(device, &position);
    switch (kind) {
    case MOCK_DEVICE:
        if (gpu)
            return NVML_SUCCESS;
        return mock_instance(device, MOCK_MIG_DEVICE, &instance) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    case MOCK_ANY_DEVICE:
        return gpu || mock_instance(device, MOCK_MIG_DEVICE, &instance) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
    case MOCK_MIG_DEVICE:
    case MOCK_GPU_INSTANCE:
    case MOCK_COMPUTE_INSTANCE:
        return mock_instance(device, kind, &instance) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
    default:
        return NVML_SUCCESS;
    }
}

nvmlReturn_t mock_enter(const char *function, enum mock_kind kind, nvmlDevice_t device)
{
    if (kind == MOCK_ANY_TIME)
        return NVML_SUCCESS; /* init and shutdown look at their rules under the lock */
    if (__atomic_load_n(&mock.references, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (mock.trace >= 0)
        trace(function, device);
    nvmlReturn_t early = mock_session();
    if (early == NVML_SUCCESS)
        early = check_handle(kind, device);
    if (early == NVML_SUCCESS)
        early = mock_rule(function, device, false);
    if (early != NVML_SUCCESS || kind == MOCK_INITIALISED)
        return early;
    return mock_presence(device);
}

nvmlReturn_t mock_reach(const char *function, nvmlDevice_t found)
{
    const nvmlReturn_t ruled = mock_rule(function, found, true);
    return ruled != NVML_SUCCESS ? ruled : mock_presence(found);
}
