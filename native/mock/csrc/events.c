/* Event sets. What happens stands in a ring in the node file; a set remembers how far it has read.
 *
 * A wait sleeps until somebody writes into the node file (inotify), as a driver's sleeps until the driver has something to
 * tell. Every writer of events and of states writes with write(2); what this process changes in its mapping is no news
 * for a wait. Where inotify has no watch left, the ring is looked at now and then.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"

#define LOOK_AT_LEAST_EVERY_MS 1000 /* a session can end under a wait without a write */
#define LOOK_WITHOUT_A_WATCH_MS 25

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned int waits; /* threads that wait on it now */
    unsigned int size;
    uint64_t seen; /* sequence of the last event that was looked at */
    int changes;   /* inotify on the node file; -1: there is none to be had */
    struct {
        unsigned long long mask;
        uint64_t since; /* what happened before the registration is not told */
    } *gpus;            /* by position in the node file: a set keeps what it was asked for */
};

_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

/* All that were made and not freed. A driver that is away refuses to free one; the last shutdown frees what is left. */
static struct {
    pthread_mutex_t lock;
    nvmlEventSet_t first;
} sets = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t last_event(void)
{
    return __atomic_load_n(&mock_node()->last_event, __ATOMIC_ACQUIRE);
}

static int watch_changes(void)
{
    const int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (changes >= 0 && inotify_add_watch(changes, mock_node_path(), IN_MODIFY) < 0) {
        close(changes);
        return -1;
    }
    return changes;
}

/* Until the node file is written to, or so long. */
static void wait_for_change(int changes, int64_t milliseconds)
{
    struct pollfd watched = {.fd = changes, .events = POLLIN};
    char told[4096];
    if (changes < 0)
        mock_pause(milliseconds < LOOK_WITHOUT_A_WATCH_MS ? milliseconds : LOOK_WITHOUT_A_WATCH_MS);
    else if (poll(&watched, 1, (int)(milliseconds < LOOK_AT_LEAST_EVERY_MS ? milliseconds : LOOK_AT_LEAST_EVERY_MS)) > 0)
        while (read(changes, told, sizeof(told)) > 0)
            continue;
}

nvmlReturn_t impl_nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct nvmlEventSet_st *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NVML_ERROR_MEMORY;
    made->size = (unsigned int)mock_node()->gpu_count;
    made->seen = last_event();
    made->gpus = calloc((size_t)made->size + 1, sizeof(*made->gpus));
    if (made->gpus == NULL) {
        free(made);
        return NVML_ERROR_MEMORY;
    }
    made->changes = watch_changes();
    pthread_mutex_lock(&sets.lock);
    made->next = sets.first;
    sets.first = made;
    pthread_mutex_unlock(&sets.lock);
    *set = made;
    return NVML_SUCCESS;
}

static void let_go(nvmlEventSet_t set)
{
    if (set->changes >= 0)
        close(set->changes);
    free(set->gpus);
    free(set);
}

/* The place that leads to a set; NULL: there is no such set. With the lock held. */
static nvmlEventSet_t *place_of(nvmlEventSet_t set)
{
    nvmlEventSet_t *place = &sets.first;
    while (*place != NULL && *place != set)
        place = &(*place)->next;
    return *place != NULL ? place : NULL;
}

static bool is_set(nvmlEventSet_t set)
{
    pthread_mutex_lock(&sets.lock);
    const bool found = set != NULL && place_of(set) != NULL;
    pthread_mutex_unlock(&sets.lock);
    return found;
}

nvmlReturn_t impl_nvmlEventSetFree(nvmlEventSet_t set)
{
    pthread_mutex_lock(&sets.lock);
    nvmlEventSet_t *place = set != NULL ? place_of(set) : NULL;
    if (place != NULL)
        *place = set->next;
    pthread_mutex_unlock(&sets.lock);
    if (place == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    let_go(set);
    return NVML_SUCCESS;
}

/* Behind the last shutdown. A set that is waited on is left to its waiter. */
void mock_free_event_sets(void)
{
    pthread_mutex_lock(&sets.lock);
    nvmlEventSet_t *place = &sets.first;
    while (*place != NULL) {
        const nvmlEventSet_t set = *place;
        if (set->waits > 0) {
            place = &set->next;
            continue;
        }
        *place = set->next;
        let_go(set);
    }
    pthread_mutex_unlock(&sets.lock);
}

nvmlReturn_t impl_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    MOCK_GIVE(eventTypes, mock_gpu(device)->event_types);
}

nvmlReturn_t impl_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int position;
    if (!is_set(set) || !mock_position(device, &position) || position >= set->size)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->event_types < 0 || (eventTypes & ~(unsigned long long)gpu->event_types) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (set->gpus[position].mask == 0)
        set->gpus[position].since = last_event();
    set->gpus[position].mask |= eventTypes;
    return NVML_SUCCESS;
}

/* One record of the ring; false where a newer event took its place, or it is not for this set. */
static bool wanted(nvmlEventSet_t set, uint64_t sequence, struct mock_event *event)
{
    const struct mock_event *place = &mock_node()->events[sequence % MOCK_EVENTS];
    if (__atomic_load_n(&place->sequence, __ATOMIC_ACQUIRE) != sequence)
        return false;
    *event = *place;
    if (__atomic_load_n(&place->sequence, __ATOMIC_ACQUIRE) != sequence)
        return false;
    return event->gpu >= 0 && event->gpu < (int64_t)set->size && sequence > set->gpus[event->gpu].since &&
           (set->gpus[event->gpu].mask & (unsigned long long)event->type) != 0;
}

static bool next_event(nvmlEventSet_t set, struct mock_event *event)
{
    const uint64_t last = last_event();
    if (last - set->seen > MOCK_EVENTS)
        set->seen = last - MOCK_EVENTS;
    while (set->seen < last)
        if (wanted(set, ++set->seen, event))
            return true;
    return false;
}

static bool has_lost_one(nvmlEventSet_t set)
{
    for (unsigned int i = 0; i < set->size; ++i)
        if (set->gpus[i].mask != 0 && mock_gone(i))
            return true;
    return false;
}

#define NS_A_MS INT64_C(1000000)

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 * NS_A_MS + now.tv_nsec;
}

/* What was reported before a GPU was lost is told first; then every wait on a set with a lost GPU ends at once. */
static nvmlReturn_t look_until(nvmlEventSet_t set, unsigned int timeoutms, struct mock_event *event)
{
    const int64_t until = now_ns() + (int64_t)timeoutms * NS_A_MS;
    for (;;) {
        const nvmlReturn_t session = mock_session();
        if (session != NVML_SUCCESS)
            return session;
        if (next_event(set, event))
            return NVML_SUCCESS;
        if (has_lost_one(set))
            return NVML_ERROR_GPU_IS_LOST;
        const int64_t left = (until - now_ns() + NS_A_MS - 1) / NS_A_MS;
        if (left <= 0)
            return NVML_ERROR_TIMEOUT;
        wait_for_change(set->changes, left);
    }
}

static nvmlReturn_t wait_for(nvmlEventSet_t set, unsigned int timeoutms, struct mock_event *event)
{
    __atomic_add_fetch(&set->waits, 1, __ATOMIC_ACQ_REL);
    const nvmlReturn_t result = look_until(set, timeoutms, event);
    __atomic_sub_fetch(&set->waits, 1, __ATOMIC_ACQ_REL);
    return result;
}

static nvmlReturn_t wait_and_give(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms, bool second)
{
    struct mock_event event;
    if (!is_set(set) || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = wait_for(set, timeoutms, &event);
    if (result != NVML_SUCCESS)
        return result;
    data->device = mock_device_at((unsigned int)event.gpu);
    data->eventType = (unsigned long long)event.type;
    data->eventData = (unsigned long long)event.data;
    if (second) { /* the struct of the first version ends here */
        data->gpuInstanceId = (unsigned int)event.gi;
        data->computeInstanceId = (unsigned int)event.ci;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    return wait_and_give(set, data, timeoutms, true);
}

nvmlReturn_t impl_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    return wait_and_give(set, data, timeoutms, false);
}

nvmlReturn_t impl_nvmlEventSetWait_v3(nvmlEventSet_t set, nvmlEventSetWait_v3_t *params)
{
    struct mock_event event;
    if (!is_set(set) || params == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned int timeout = params->timeoutMs;
    const nvmlReturn_t result = wait_for(set, timeout, &event);
    if (result != NVML_SUCCESS)
        return result;
    *params = (nvmlEventSetWait_v3_t){
        .timeoutMs = timeout,
        .dataType = NVML_EVENT_DATA_TYPE_NVML_EVENT,
        .eventType = (unsigned long long)event.type,
        .eventData = (unsigned long long)event.data,
        .gpuInstanceId = (unsigned int)event.gi,
        .computeInstanceId = (unsigned int)event.ci,
    };
    const nvmlDevice_t device = mock_device_at((unsigned int)event.gpu);
    if (mock_text(&mock_gpu(device)->uuid, params->uuid, sizeof(params->uuid)) != NVML_SUCCESS)
        params->uuid[0] = '\0';
    return NVML_SUCCESS;
}
