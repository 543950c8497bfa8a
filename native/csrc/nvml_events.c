/* See nvml_events.h. */
#include "nvml_events.h"

#include "nvml_api.h"

#include <stdint.h>
#include <time.h>

_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");
_Static_assert(sizeof(uintptr_t) <= sizeof(unsigned long long), "a handle must fit");

int door_events_open(door *door)
{
    nvmlEventSet_t set = NULL;
    door_events_close(door);
    int code = CALL(door, nvmlEventSetCreate, &set);
    door->events = code == NVML_SUCCESS ? set : NULL;
    return code;
}

void door_events_close(door *door)
{
    door->gpu = -1;
    if (door->events != NULL) {
        (void)CALL(door, nvmlEventSetFree, door->events);
        door->events = NULL;
    }
}

int door_events_register(door *door, const door_gpu *gpus, int position, unsigned long long mask,
                         unsigned long long *registered, unsigned long long *device)
{
    nvmlDevice_t handle = NULL;
    unsigned long long supported = 0;
    int code = door_reach(door, gpus, position, &handle);
    if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlDeviceGetSupportedEventTypes, handle, &supported);
    }
    supported &= mask;
    if (code == NVML_SUCCESS && supported != 0) {
        code = CALL(door, nvmlDeviceRegisterEvents, handle, supported, door->events);
    }
    *registered = code == NVML_SUCCESS ? supported : 0;
    *device = (unsigned long long)(uintptr_t)handle;
    door->gpu = -1;
    return code;
}

static unsigned long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000ULL + (unsigned long long)now.tv_nsec / 1000000ULL;
}

int door_events_wait(door *door, unsigned int timeout_ms, unsigned int step_ms, door_stop *stop, door_event *event)
{
    const unsigned long long end = now_ms() + timeout_ms;
    nvmlEventData_t data;
    int code = NVML_ERROR_TIMEOUT;
    while (code == NVML_ERROR_TIMEOUT && atomic_exchange(&stop->set, 0) == 0) {
        const unsigned long long now = now_ms();
        const unsigned long long left = now < end ? end - now : 0;
        memset(&data, 0, sizeof(data));
        code = CALL(door, nvmlEventSetWait_v2, door->events, &data, left < step_ms ? (unsigned int)left : step_ms);
        if (left == 0) {
            break;
        }
        if (code == NVML_ERROR_TIMEOUT && now_ms() == now) {
            /* A library that does not wait at all must not turn this into a busy loop. */
            const struct timespec pause = {0, 5000000L};
            (void)nanosleep(&pause, NULL);
        }
    }
    if (code == NVML_SUCCESS) {
        event->device = (unsigned long long)(uintptr_t)data.device;
        event->type = data.eventType;
        event->data = data.eventData;
        event->gpu_instance = data.gpuInstanceId;
        event->compute_instance = data.computeInstanceId;
        event->pci_code = data.device == NULL ? (int)NVML_ERROR_NOT_FOUND : door_read_pci(door, data.device, &event->pci);
    }
    return code;
}

void door_stop_now(door_stop *stop)
{
    atomic_store(&stop->set, 1);
}
