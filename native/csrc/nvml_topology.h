/* NVML's own view of how the GPUs of a node lie to each other and to its CPUs, through the door. */
#ifndef GPUDRA_NVML_TOPOLOGY_H
#define GPUDRA_NVML_TOPOLOGY_H

#include "nvml_door.h"

/* cdef begin */
#define DOOR_CPU_WORDS 128
#define DOOR_NODE_WORDS 16

typedef struct {
    int handle_code;
    int cpus_code;
    int nodes_code;
    unsigned long cpus[DOOR_CPU_WORDS];
    unsigned long nodes[DOOR_NODE_WORDS];
} door_affinity;

typedef struct {
    int level_code;
    int level;
    int nvlink_code;
    int nvlink;
} door_pair;

/* One affinity a GPU; one pair for each two GPUs, (0,1), (0,2), ..., (1,2), ... All zero before. */
void door_read_topology(door *door, const door_gpu *gpus, unsigned int count, door_affinity *affinities,
                        door_pair *pairs);
/* cdef end */

#endif
