/* Events through the door: one set for each context, and a wait that another thread can end. */
#ifndef GPUDRA_NVML_EVENTS_H
#define GPUDRA_NVML_EVENTS_H

#include "nvml_door.h"

#include <stdatomic.h>

/* Set by any thread to end a wait; lives as long as its owner wants. */
typedef struct {
    atomic_int set;
} door_stop;

/* cdef begin */
typedef struct {
    unsigned long long device; /* the handle, as a number to compare with those that were registered */
    unsigned long long type;
    unsigned long long data;
    unsigned int gpu_instance;
    unsigned int compute_instance;
    int pci_code;
    door_pci pci;
} door_event;

/* A new set in place of the one before. */
int door_events_open(door *door);
void door_events_close(door *door);
/* Registers a GPU for those kinds of `mask` that it supports; none is no error: *registered is then 0. */
int door_events_register(door *door, const door_gpu *gpus, int position, unsigned long long mask,
                         unsigned long long *registered, unsigned long long *device);
/* Waits in steps of `step_ms`, so that a stop is noticed; NVML_ERROR_TIMEOUT after `timeout_ms` or a stop. */
int door_events_wait(door *door, unsigned int timeout_ms, unsigned int step_ms, door_stop *stop, door_event *event);
/* Ends the wait under way, or else the next one. */
void door_stop_now(door_stop *stop);
/* cdef end */

#endif
