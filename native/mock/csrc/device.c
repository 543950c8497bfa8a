/* What a GPU has and how it is set: memory, modes, power, clocks. */
#include "mock.h"

_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlDeviceAddressingMode_v1_t) == 8, "nvmlDeviceAddressingMode_v1_t");

/* What processes hold, in bytes; gi -1 is the whole GPU. */
static int64_t held(const struct mock_gpu *gpu, int64_t gi)
{
    int64_t sum = 0;
    for (unsigned int i = 0; i < MOCK_MAX_PROCESSES; ++i) {
        const struct mock_process *process = &gpu->processes[i];
        if (__atomic_load_n(&process->pid, __ATOMIC_ACQUIRE) != 0 && (gi < 0 || process->gi == gi) && process->memory > 0)
            sum += process->memory;
    }
    return sum;
}

struct sizes {
    unsigned long long total, reserved, used;
};

/* Of the GPU, or of the GPU instance that a MIG device lies in: all its compute instances share the memory. */
static nvmlReturn_t sizes_of(nvmlDevice_t device, struct sizes *sizes)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    struct mock_instance mig;
    int64_t used;
    if (gpu->memory_total < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mock_instance(device, MOCK_MIG_DEVICE, &mig)) {
        *sizes = (struct sizes){.total = (unsigned long long)mig.profile->memory_mib << 20U};
        used = held(gpu, (int64_t)mig.gi);
    } else {
        *sizes = (struct sizes){(unsigned long long)gpu->memory_total, (unsigned long long)gpu->memory_reserved, 0};
        used = gpu->memory_used + held(gpu, -1);
    }
    const unsigned long long most = sizes->total - sizes->reserved;
    sizes->used = (unsigned long long)used < most ? (unsigned long long)used : most;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sizes sizes;
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = sizes_of(device, &sizes);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = sizes.total;
    memory->used = sizes.used + sizes.reserved; /* v1 counts the reserved as used */
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct sizes sizes;
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != MOCK_VERSION_OF(nvmlMemory_v2_t, 2) || mock_refuses("nvmlDeviceGetMemoryInfo_v2", device, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = sizes_of(device, &sizes);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = sizes.total;
    memory->reserved = sizes.reserved;
    memory->used = sizes.used;
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (bar1Memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->bar1_total < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    bar1Memory->bar1Total = (unsigned long long)gpu->bar1_total;
    bar1Memory->bar1Used = (unsigned long long)gpu->bar1_used;
    bar1Memory->bar1Free = bar1Memory->bar1Total - bar1Memory->bar1Used;
    return NVML_SUCCESS;
}

#define NUMBER_GETTER(function, type, field)                                                 \
    nvmlReturn_t impl_##function(nvmlDevice_t device, type *out)                             \
    {                                                                                        \
        MOCK_GIVE(out, mock_gpu(device)->field);                                             \
    }

NUMBER_GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)
NUMBER_GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence)
NUMBER_GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, virtualization)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_generation)
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_generation)
NUMBER_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, pcie_device_generation)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width)
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)
NUMBER_GETTER(nvmlDeviceGetNumaNodeId, unsigned int, memory_numa_node)
NUMBER_GETTER(nvmlDeviceGetPowerUsage, unsigned int, power_usage_mw)
NUMBER_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit_mw)
NUMBER_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_limit_mw)
NUMBER_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_default_mw)
NUMBER_GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj)
NUMBER_GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state)
NUMBER_GETTER(nvmlDeviceGetFanSpeed, unsigned int, fan_speed)
NUMBER_GETTER(nvmlDeviceGetNumFans, unsigned int, fans)

nvmlReturn_t impl_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit,
                                                               unsigned int *maxLimit)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (minLimit == NULL || maxLimit == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->power_min_mw < 0 || gpu->power_max_mw < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *minLimit = (unsigned int)gpu->power_min_mw;
    *maxLimit = (unsigned int)gpu->power_max_mw;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    if (mode == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mode->version != MOCK_VERSION_OF(nvmlDeviceAddressingMode_v1_t, 1) ||
        mock_refuses("nvmlDeviceGetAddressingMode", device, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    MOCK_GIVE(&mode->value, mock_gpu(device)->addressing_mode);
}

static nvmlReturn_t give_pair(int64_t current, int64_t pending, unsigned int *first, unsigned int *second)
{
    if (first == NULL || second == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (current < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *first = (unsigned int)current;
    *second = (unsigned int)pending;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    return give_pair(gpu->ecc_current, gpu->ecc_pending, (unsigned int *)current, (unsigned int *)pending);
}

nvmlReturn_t impl_nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *defaultMode)
{
    MOCK_GIVE(defaultMode, mock_gpu(device)->ecc_current < 0 ? -1 : 1);
}

nvmlReturn_t impl_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    return give_pair(gpu->mig_current, gpu->mig_pending, currentMode, pendingMode);
}

nvmlReturn_t impl_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
    if (sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(temp, mock_gpu(device)->temperature);
}

nvmlReturn_t impl_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    if (temperature == NULL || temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (temperature->version != MOCK_VERSION_OF(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    MOCK_GIVE(&temperature->temperature, mock_gpu(device)->temperature);
}

nvmlReturn_t impl_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType,
                                                    unsigned int *temp)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    switch (thresholdType) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        MOCK_GIVE(temp, gpu->temperature_shutdown);
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
        MOCK_GIVE(temp, gpu->temperature_slowdown);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t give_clock(const int64_t clocks[4], nvmlClockType_t type, unsigned int *clock)
{
    if ((unsigned int)type >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(clock, clocks[type]);
}

_Static_assert(NVML_CLOCK_COUNT == 4, "the node file holds four clocks");

nvmlReturn_t impl_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return give_clock(mock_gpu(device)->clocks, type, clock);
}

nvmlReturn_t impl_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return give_clock(mock_gpu(device)->max_clocks, type, clock);
}

/* What every data centre board says: no display, no accounting, one GPU to a bridge. */
#define CONSTANT_GETTER(function, type, value)                                               \
    nvmlReturn_t impl_##function(nvmlDevice_t device, type *out)                             \
    {                                                                                        \
        (void)device;                                                                        \
        MOCK_GIVE(out, value);                                                               \
    }

CONSTANT_GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, 0)
CONSTANT_GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, 0)
CONSTANT_GETTER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, 0)
CONSTANT_GETTER(nvmlDeviceGetAccountingBufferSize, unsigned int, 4000)
CONSTANT_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)

nvmlReturn_t impl_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    (void)device;
    if ((unsigned int)counter >= NVML_PCIE_UTIL_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(value, 0);
}

/* Settings. Each is one number, so no lock is needed; who may only read the node may not set anything. */
nvmlReturn_t impl_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    if ((unsigned int)mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    return mock_set(&mock_gpu(device)->persistence, (int64_t)mode);
}

nvmlReturn_t impl_nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    /* exclusive-thread (1) was taken away with CUDA 8 */
    if ((unsigned int)mode >= NVML_COMPUTEMODE_COUNT || mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
        return (unsigned int)mode >= NVML_COMPUTEMODE_COUNT ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    if (__atomic_load_n(&mock_gpu(device)->mig_current, __ATOMIC_RELAXED) == 1) /* captured: NVIDIA/go-nvml#61 */
        return NVML_ERROR_NOT_SUPPORTED;
    return mock_set(&mock_gpu(device)->compute_mode, (int64_t)mode);
}

nvmlReturn_t impl_nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (gpu->power_min_mw < 0 || gpu->power_max_mw < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((int64_t)limit < gpu->power_min_mw || (int64_t)limit > gpu->power_max_mw)
        return NVML_ERROR_INVALID_ARGUMENT;
    return mock_set(&gpu->power_limit_mw, (int64_t)limit);
}
