/* Who uses a GPU and how busy it is: processes, utilisation, why clocks are held down. A test drives all of it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

#include "mock.h"

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "nvmlProcessInfo_v1_t");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_v2_t");

enum process_kind { COMPUTE, GRAPHICS, MPS };

/* nvml.h: not on a GPU that MIG divides */
static bool divided(const struct mock_gpu *gpu)
{
    return __atomic_load_n(&gpu->mig_current, __ATOMIC_RELAXED) == 1;
}

nvmlReturn_t impl_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (utilization == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->utilization_gpu < 0 || divided(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    utilization->gpu = (unsigned int)gpu->utilization_gpu;
    utilization->memory = (unsigned int)gpu->utilization_memory;
    return NVML_SUCCESS;
}

#define SAMPLING_PERIOD_US 167000U

static nvmlReturn_t give_utilization(const struct mock_gpu *gpu, int64_t value, unsigned int *out, unsigned int *period)
{
    if (out == NULL || period == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (value < 0 || divided(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)value;
    *period = SAMPLING_PERIOD_US;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                  unsigned int *samplingPeriodUs)
{
    return give_utilization(mock_gpu(device), mock_gpu(device)->utilization_encoder, utilization, samplingPeriodUs);
}

nvmlReturn_t impl_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                  unsigned int *samplingPeriodUs)
{
    return give_utilization(mock_gpu(device), mock_gpu(device)->utilization_decoder, utilization, samplingPeriodUs);
}

#define REASONS_GETTER(function, value)                                                          \
    nvmlReturn_t impl_##function(nvmlDevice_t device, unsigned long long *reasons)               \
    {                                                                                            \
        MOCK_GIVE(reasons, mock_gpu(device)->throttle_reasons < 0 ? -1 : (int64_t)(value));      \
    }

REASONS_GETTER(nvmlDeviceGetCurrentClocksEventReasons, mock_gpu(device)->throttle_reasons)
REASONS_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, mock_gpu(device)->throttle_reasons)
REASONS_GETTER(nvmlDeviceGetSupportedClocksEventReasons, nvmlClocksEventReasonAll)
REASONS_GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlClocksEventReasonAll)

/* Whether a process belongs in the answer about a device: on a MIG device only its own. */
static bool counts(const struct mock_process *process, nvmlDevice_t device, int64_t kind)
{
    struct mock_instance mig;
    if (__atomic_load_n(&process->pid, __ATOMIC_ACQUIRE) == 0 || (kind >= 0 && process->kind != kind))
        return false;
    return !mock_instance(device, MOCK_MIG_DEVICE, &mig) ||
           (process->gi == (int64_t)mig.gi && process->ci == (int64_t)mig.ci);
}

/* Three struct versions of one list; a place that is too short gets the number that it needs. */
static nvmlReturn_t give_processes(nvmlDevice_t device, int64_t kind, unsigned int *count, void *infos, bool first)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int found = 0;
    if (count == NULL || (*count > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < MOCK_MAX_PROCESSES; ++i) {
        const struct mock_process *process = &gpu->processes[i];
        if (!counts(process, device, kind))
            continue;
        const nvmlProcessInfo_v2_t info = {
            .pid = (unsigned int)process->pid,
            .usedGpuMemory = process->memory < 0 ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE
                                                 : (unsigned long long)process->memory,
            .gpuInstanceId = (unsigned int)process->gi, /* -1 is nvml.h's 0xFFFFFFFF */
            .computeInstanceId = (unsigned int)process->ci,
        };
        if (found < *count && first)
            ((nvmlProcessInfo_v1_t *)infos)[found] = (nvmlProcessInfo_v1_t){info.pid, info.usedGpuMemory};
        else if (found < *count)
            ((nvmlProcessInfo_v2_t *)infos)[found] = info;
        ++found;
    }
    const bool fits = found <= *count;
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROCESS_LIST(function, type, kind, first)                                            \
    nvmlReturn_t impl_##function(nvmlDevice_t device, unsigned int *infoCount, type *infos)  \
    {                                                                                        \
        return give_processes(device, kind, infoCount, infos, first);                        \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, COMPUTE, true)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, COMPUTE, false)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, COMPUTE, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, GRAPHICS, true)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, GRAPHICS, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, GRAPHICS, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, MPS, true)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, MPS, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, MPS, false)

nvmlReturn_t impl_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < mock_count(); ++i) {
        const struct mock_gpu *gpu = mock_gpu(mock_handle(i));
        for (unsigned int j = 0; j < MOCK_MAX_PROCESSES; ++j)
            if (gpu->processes[j].pid == pid && pid != 0) {
                /* cut to what the caller has room for, as the real library does with a path */
                snprintf(name, length, "%.*s", (int)sizeof(gpu->processes[j].name),
                         (const char *)gpu->processes[j].name);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                  unsigned int *processSamplesCount,
                                                  unsigned long long lastSeenTimeStamp)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    struct timespec now;
    unsigned int found = 0;
    if (processSamplesCount == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (divided(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    const unsigned long long stamp = (unsigned long long)now.tv_sec * 1000000U + (unsigned long long)now.tv_nsec / 1000U;
    for (unsigned int i = 0; i < MOCK_MAX_PROCESSES && lastSeenTimeStamp <= stamp; ++i) {
        const struct mock_process *process = &gpu->processes[i];
        if (!counts(process, device, -1) || process->sm < 0)
            continue;
        if (utilization != NULL && found < *processSamplesCount)
            utilization[found] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned int)process->pid,
                .timeStamp = stamp,
                .smUtil = (unsigned int)process->sm,
                .memUtil = (unsigned int)process->memory_use,
                .encUtil = (unsigned int)process->encoder,
                .decUtil = (unsigned int)process->decoder,
            };
        ++found;
    }
    const bool fits = utilization != NULL && found <= *processSamplesCount;
    *processSamplesCount = found;
    return found == 0 ? NVML_ERROR_NOT_FOUND : fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
