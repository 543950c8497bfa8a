/* Where GPUs stand to each other and to CPUs. The matrices were worked out from the PCIe tree of the profile. */
#include "mock.h"

static nvmlReturn_t give_pair(int64_t matrix, nvmlDevice_t one, nvmlDevice_t other, int *value)
{
    const struct mock_gpu *second = mock_gpu(other);
    if (second == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t there = mock_presence(other);
    if (there != NVML_SUCCESS)
        return there;
    *value = mock_pair((size_t)matrix, one, other);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                      nvmlGpuTopologyLevel_t *pathInfo)
{
    int level = 0;
    if (pathInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = give_pair(mock_node()->level_offset, device1, device2, &level);
    if (result == NVML_SUCCESS)
        *pathInfo = (nvmlGpuTopologyLevel_t)level;
    return result;
}

/* nvml.h: the set of GPUs whose common ancestor with this one is exactly the given level. */
nvmlReturn_t impl_nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                                   unsigned int *count, nvmlDevice_t *deviceArray)
{
    if (count == NULL || (*count > 0 && deviceArray == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int found = 0;
    for (unsigned int i = 0; i < mock_count(); ++i) {
        const nvmlDevice_t other = mock_handle(i);
        if (other == device || mock_pair((size_t)mock_node()->level_offset, device, other) != (int)level)
            continue;
        if (found < *count)
            deviceArray[found] = other;
        ++found;
    }
    const bool fits = *count == 0 || found <= *count;
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t impl_nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t p2pIndex,
                                         nvmlGpuP2PStatus_t *p2pStatus)
{
    int status = 0;
    if (p2pStatus == NULL || (unsigned int)p2pIndex >= NVML_P2P_CAPS_INDEX_UNKNOWN || device1 == device2)
        return NVML_ERROR_INVALID_ARGUMENT;
    const bool nvlink = p2pIndex == NVML_P2P_CAPS_INDEX_NVLINK;
    const int64_t matrix = nvlink ? mock_node()->nvlink_p2p_offset : mock_node()->p2p_offset;
    const nvmlReturn_t result = give_pair(matrix, device1, device2, &status);
    if (result == NVML_SUCCESS)
        *p2pStatus = (nvmlGpuP2PStatus_t)status;
    return result;
}

/* Sets are arrays of unsigned long, 64 entries each; one too short for the highest bit is INSUFFICIENT_SIZE. */
static nvmlReturn_t give_set(const uint64_t *words, unsigned int have, unsigned int size, unsigned long *out)
{
    if (out == NULL || size == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = size; i < have; ++i)
        if (words[i] != 0)
            return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < size; ++i)
        out[i] = i < have ? words[i] : 0;
    return NVML_SUCCESS;
}

_Static_assert(sizeof(unsigned long) == sizeof(uint64_t), "a 64-bit machine");

nvmlReturn_t impl_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int cpuSetSize,
                                                      unsigned long *cpuSet, nvmlAffinityScope_t scope)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    const uint64_t *cpus = scope == NVML_AFFINITY_SCOPE_SOCKET ? gpu->socket_cpus : gpu->cpus;
    return give_set(cpus, MOCK_CPU_WORDS, cpuSetSize, cpuSet);
}

nvmlReturn_t impl_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int cpuSetSize, unsigned long *cpuSet)
{
    return give_set(mock_gpu(device)->cpus, MOCK_CPU_WORDS, cpuSetSize, cpuSet);
}

nvmlReturn_t impl_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int nodeSetSize, unsigned long *nodeSet,
                                              nvmlAffinityScope_t scope)
{
    if (scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_set(mock_gpu(device)->memory_nodes, MOCK_NODE_WORDS, nodeSetSize, nodeSet);
}
