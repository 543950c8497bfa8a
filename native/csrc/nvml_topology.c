/* See nvml_topology.h. */
#include "nvml_topology.h"

#include "nvml_api.h"

#include <stdlib.h>

_Static_assert(sizeof(nvmlGpuTopologyLevel_t) == sizeof(int), "nvmlGpuTopologyLevel_t");
_Static_assert(sizeof(nvmlGpuP2PStatus_t) == sizeof(int), "nvmlGpuP2PStatus_t");

static void read_pair(door *door, nvmlDevice_t a, nvmlDevice_t b, door_pair *pair)
{
    nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
    nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
    pair->level_code = CALL(door, nvmlDeviceGetTopologyCommonAncestor, a, b, &level);
    pair->level = (int)level;
    pair->nvlink_code = CALL(door, nvmlDeviceGetP2PStatus, a, b, NVML_P2P_CAPS_INDEX_NVLINK, &status);
    pair->nvlink = (int)status;
}

void door_read_topology(door *door, const door_gpu *gpus, unsigned int count, door_affinity *affinities,
                        door_pair *pairs)
{
    nvmlDevice_t *devices = calloc(count + 1U, sizeof(*devices));
    for (unsigned int i = 0; i < count; i++) {
        door_affinity *affinity = &affinities[i];
        affinity->handle_code =
            devices == NULL ? (int)NVML_ERROR_MEMORY : door_reach(door, gpus, (int)i, &devices[i]);
        if (affinity->handle_code == NVML_SUCCESS) {
            affinity->cpus_code = CALL(door, nvmlDeviceGetCpuAffinity, devices[i], DOOR_CPU_WORDS, affinity->cpus);
            affinity->nodes_code = CALL(door, nvmlDeviceGetMemoryAffinity, devices[i], DOOR_NODE_WORDS,
                                        affinity->nodes, NVML_AFFINITY_SCOPE_NODE);
        }
    }
    for (unsigned int i = 0; i < count; i++) {
        for (unsigned int j = i + 1; j < count; j++, pairs++) {
            int code = affinities[i].handle_code != NVML_SUCCESS ? affinities[i].handle_code
                                                                 : affinities[j].handle_code;
            if (code != NVML_SUCCESS) {
                pairs->level_code = code;
                pairs->nvlink_code = code;
                continue;
            }
            door->gpu = (int)i;
            read_pair(door, devices[i], devices[j], pairs);
        }
    }
    free(devices);
    door->gpu = -1;
}
