/* See nvml_health.h. */
#include "nvml_health.h"

#include "nvml_api.h"

_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlRepairStatus_v1_t) == 12, "nvmlRepairStatus_v1_t");
_Static_assert(sizeof(nvmlTemperature_v1_t) == 12, "nvmlTemperature_v1_t");
_Static_assert(NVML_PAGE_RETIREMENT_CAUSE_COUNT == 2, "pages_retired");
_Static_assert(sizeof(nvmlUtilization_t) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24 && sizeof(door_process) == 24, "nvmlProcessInfo_t");
_Static_assert(offsetof(nvmlProcessInfo_t, usedGpuMemory) == offsetof(door_process, used_memory), "usedGpuMemory");
_Static_assert(offsetof(nvmlProcessInfo_t, gpuInstanceId) == offsetof(door_process, gpu_instance), "gpuInstanceId");

/* Asks for the counts only where pages are retired at all, so that other boards cost one call. */
static int read_retired_pages(door *door, nvmlDevice_t device, door_health *out)
{
    nvmlEnableState_t pending = NVML_FEATURE_DISABLED;
    int code = CALL(door, nvmlDeviceGetRetiredPagesPendingStatus, device, &pending);
    for (int cause = 0; code == NVML_SUCCESS && cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT; cause++) {
        unsigned int count = 0; /* no room for addresses: only how many there are */
        code = CALL(door, nvmlDeviceGetRetiredPages, device, (nvmlPageRetirementCause_t)cause, &count, NULL);
        if (code == NVML_ERROR_INSUFFICIENT_SIZE) {
            code = NVML_SUCCESS;
        }
        out->pages_retired[cause] = count;
    }
    out->pages_pending = pending == NVML_FEATURE_ENABLED;
    return code;
}

static void read_errors(door *door, nvmlDevice_t device, door_health *out)
{
    static const struct {
        nvmlMemoryErrorType_t error;
        nvmlEccCounterType_t counter;
    } KINDS[] = {
        {NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC},
        {NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC},
        {NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC},
        {NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC},
    };
    for (int i = 0; i < 4; i++) {
        out->codes[DOOR_HEALTH_ECC_CORRECTED_VOLATILE + i] =
            CALL(door, nvmlDeviceGetTotalEccErrors, device, KINDS[i].error, KINDS[i].counter, &out->ecc[i]);
    }
    out->codes[DOOR_HEALTH_REMAPPED_ROWS] =
        CALL(door, nvmlDeviceGetRemappedRows, device, &out->rows_correctable, &out->rows_uncorrectable,
             &out->rows_pending, &out->rows_failed);
    out->codes[DOOR_HEALTH_RETIRED_PAGES] = read_retired_pages(door, device, out);
    nvmlRepairStatus_v1_t repair = {.version = nvmlRepairStatus_v1};
    out->codes[DOOR_HEALTH_REPAIR_PENDING] = CALL(door, nvmlDeviceGetRepairStatus, device, &repair);
    out->channel_repair_pending = repair.bChannelRepairPending;
    out->tpc_repair_pending = repair.bTpcRepairPending;
    nvmlFieldValue_t value;
    memset(&value, 0, sizeof(value));
    value.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    int code = CALL(door, nvmlDeviceGetFieldValues, device, 1, &value);
    out->codes[DOOR_HEALTH_RECOVERY_ACTION] = code != NVML_SUCCESS ? code : (int)value.nvmlReturn;
    out->recovery_action = value.value.uiVal;
}

static void read_load(door *door, nvmlDevice_t device, door_health *out)
{
    int code = CALL(door, nvmlDeviceGetCurrentClocksEventReasons, device, &out->clocks_event_reasons);
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND) {
        code = CALL(door, nvmlDeviceGetCurrentClocksThrottleReasons, device, &out->clocks_event_reasons);
    }
    out->codes[DOOR_HEALTH_CLOCKS_EVENT_REASONS] = code;
    nvmlTemperature_t temperature;
    memset(&temperature, 0, sizeof(temperature));
    temperature.version = nvmlTemperature_v1;
    temperature.sensorType = NVML_TEMPERATURE_GPU;
    code = CALL(door, nvmlDeviceGetTemperatureV, device, &temperature);
    if (door_too_new(code)) {
        unsigned int degrees = 0;
        code = CALL(door, nvmlDeviceGetTemperature, device, NVML_TEMPERATURE_GPU, &degrees);
        temperature.temperature = (int)degrees;
    }
    out->codes[DOOR_HEALTH_TEMPERATURE] = code;
    out->temperature = temperature.temperature;
    nvmlUtilization_t utilization = {0, 0};
    out->codes[DOOR_HEALTH_UTILIZATION] = CALL(door, nvmlDeviceGetUtilizationRates, device, &utilization);
    out->gpu_utilization = utilization.gpu;
    out->memory_utilization = utilization.memory;
    nvmlMemory_v2_t second;
    memset(&second, 0, sizeof(second));
    second.version = nvmlMemory_v2;
    code = CALL(door, nvmlDeviceGetMemoryInfo_v2, device, &second);
    out->codes[DOOR_HEALTH_MEMORY_USED] = code;
    out->memory_used = second.used;
}

void door_read_health(door *door, const door_gpu *gpus, unsigned int count, door_health *out)
{
    for (unsigned int i = 0; i < count; i++) {
        nvmlDevice_t device = NULL;
        out[i].codes[DOOR_HEALTH_HANDLE] = door_reach(door, gpus, (int)i, &device);
        if (out[i].codes[DOOR_HEALTH_HANDLE] == NVML_SUCCESS) {
            out[i].codes[DOOR_HEALTH_UUID] = CALL(door, nvmlDeviceGetUUID, device, out[i].uuid, DOOR_TEXT);
            read_errors(door, device, &out[i]);
            read_load(door, device, &out[i]);
        }
    }
    door->gpu = -1;
}

int door_processes(door *door, const door_gpu *gpus, int position, int kind, door_process *out, unsigned int *count)
{
    nvmlDevice_t device = NULL;
    nvmlProcessInfo_t *infos = (nvmlProcessInfo_t *)out;
    int code = door_reach(door, gpus, position, &device);
    if (code == NVML_SUCCESS && kind == DOOR_COMPUTE_PROCESSES) {
        code = CALL(door, nvmlDeviceGetComputeRunningProcesses_v3, device, count, infos);
    } else if (code == NVML_SUCCESS && kind == DOOR_GRAPHICS_PROCESSES) {
        code = CALL(door, nvmlDeviceGetGraphicsRunningProcesses_v3, device, count, infos);
    } else if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlDeviceGetMPSComputeRunningProcesses_v3, device, count, infos);
    }
    door->gpu = -1;
    return code;
}
