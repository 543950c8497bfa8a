/* Event sets. Nothing happens on a quiet node, so a wait lasts its timeout; the control handle will feed them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "mock.h"

#define SET_MAGIC 0x65767431U

struct nvmlEventSet_st {
    unsigned int magic;
    unsigned int size;
    unsigned long long *masks; /* one a GPU of the node: a set keeps what it was asked for */
};

_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

nvmlReturn_t impl_nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct nvmlEventSet_st *made = malloc(sizeof(*made));
    if (made == NULL)
        return NVML_ERROR_MEMORY;
    made->magic = SET_MAGIC;
    made->size = (unsigned int)mock_node()->gpu_count;
    made->masks = calloc((size_t)made->size + 1, sizeof(*made->masks));
    if (made->masks == NULL) {
        free(made);
        return NVML_ERROR_MEMORY;
    }
    *set = made;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlEventSetFree(nvmlEventSet_t set)
{
    if (set == NULL || set->magic != SET_MAGIC)
        return NVML_ERROR_INVALID_ARGUMENT;
    set->magic = 0;
    free(set->masks);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    MOCK_GIVE(eventTypes, mock_gpu(device)->event_types);
}

nvmlReturn_t impl_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int index;
    if (set == NULL || set->magic != SET_MAGIC || !mock_index(device, &index) || index >= set->size)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->event_types < 0 || (eventTypes & ~(unsigned long long)gpu->event_types) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    set->masks[index] |= eventTypes;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    if (set == NULL || set->magic != SET_MAGIC || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec left = {timeoutms / 1000U, (long)(timeoutms % 1000U) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
    return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t impl_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    return impl_nvmlEventSetWait_v2(set, data, timeoutms);
}
