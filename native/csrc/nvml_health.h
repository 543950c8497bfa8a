/* What health and idle accounting ask of a GPU, through the door. */
#ifndef GPUDRA_NVML_HEALTH_H
#define GPUDRA_NVML_HEALTH_H

#include "nvml_door.h"

/* cdef begin */
/* Each name in lower case without the prefix is a field of GpuHealth or the code of one, in no order that matters. */
enum door_health_field {
    DOOR_HEALTH_HANDLE,
    DOOR_HEALTH_UUID,
    DOOR_HEALTH_ECC_CORRECTED_VOLATILE,
    DOOR_HEALTH_ECC_UNCORRECTED_VOLATILE,
    DOOR_HEALTH_ECC_CORRECTED_AGGREGATE,
    DOOR_HEALTH_ECC_UNCORRECTED_AGGREGATE,
    DOOR_HEALTH_REMAPPED_ROWS,
    DOOR_HEALTH_RETIRED_PAGES,
    DOOR_HEALTH_REPAIR_PENDING,
    DOOR_HEALTH_RECOVERY_ACTION,
    DOOR_HEALTH_CLOCKS_EVENT_REASONS,
    DOOR_HEALTH_TEMPERATURE,
    DOOR_HEALTH_UTILIZATION,
    DOOR_HEALTH_MEMORY_USED,
    DOOR_HEALTH_FIELDS
};

typedef struct {
    int codes[DOOR_HEALTH_FIELDS];
    char uuid[DOOR_TEXT];
    unsigned long long ecc[4]; /* in the order of the fields */
    unsigned int rows_correctable;
    unsigned int rows_uncorrectable;
    unsigned int rows_pending;
    unsigned int rows_failed;
    unsigned int pages_retired[2]; /* by nvmlPageRetirementCause_t */
    unsigned int pages_pending;
    unsigned int channel_repair_pending;
    unsigned int tpc_repair_pending;
    unsigned int recovery_action;
    unsigned long long clocks_event_reasons;
    int temperature;
    unsigned int gpu_utilization;
    unsigned int memory_utilization;
    unsigned long long memory_used;
} door_health;

enum door_process_kind { DOOR_COMPUTE_PROCESSES, DOOR_GRAPHICS_PROCESSES, DOOR_MPS_PROCESSES };

typedef struct {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance;
    unsigned int compute_instance;
} door_process;

/* Reads each GPU of the array; `out` has as many elements, all zero. */
void door_read_health(door *door, const door_gpu *gpus, unsigned int count, door_health *out);
/* *count: in, how many fit; out, how many there are, which may be more: NVML_ERROR_INSUFFICIENT_SIZE then. */
int door_processes(door *door, const door_gpu *gpus, int position, int kind, door_process *out, unsigned int *count);
/* cdef end */

#endif
