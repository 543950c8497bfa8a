/* What tells a healthy board from a sick one: ECC counters, remapped rows, retired pages, repairs. */
#include "mock.h"

_Static_assert(sizeof(nvmlRemappedRowsInfo_v2_t) == 24, "nvmlRemappedRowsInfo_v2_t");

static nvmlReturn_t ecc(const struct mock_gpu *gpu, unsigned int error, unsigned int counter, int64_t *value)
{
    if (error >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    const bool since_boot = counter == NVML_VOLATILE_ECC;
    if (error == NVML_MEMORY_ERROR_TYPE_CORRECTED)
        *value = since_boot ? gpu->ecc_single : gpu->ecc_single_total;
    else
        *value = since_boot ? gpu->ecc_double : gpu->ecc_double_total;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                              nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    int64_t value;
    const nvmlReturn_t result = ecc(mock_gpu(device), (unsigned int)errorType, (unsigned int)counterType, &value);
    if (result != NVML_SUCCESS)
        return result;
    MOCK_GIVE(eccCounts, value);
}

/* All errors of the mock are in DRAM, which nvml.h also calls the device memory. */
nvmlReturn_t impl_nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                                  nvmlEccCounterType_t counterType,
                                                  nvmlMemoryLocation_t locationType, unsigned long long *count)
{
    int64_t value;
    if ((unsigned int)locationType >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = ecc(mock_gpu(device), (unsigned int)errorType, (unsigned int)counterType, &value);
    if (result != NVML_SUCCESS)
        return result;
    const bool memory = locationType == NVML_MEMORY_LOCATION_DEVICE_MEMORY;
    MOCK_GIVE(count, value > 0 && !memory ? 0 : value);
}

nvmlReturn_t impl_nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counterType)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if ((unsigned int)counterType >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->ecc_single < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const bool since_boot = counterType == NVML_VOLATILE_ECC;
    const nvmlReturn_t result = mock_set(since_boot ? &gpu->ecc_single : &gpu->ecc_single_total, 0);
    return result != NVML_SUCCESS ? result : mock_set(since_boot ? &gpu->ecc_double : &gpu->ecc_double_total, 0);
}

static bool has_instances(const struct mock_gpu *gpu)
{
    for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
        if (__atomic_load_n(&gpu->gis[gi].tag, __ATOMIC_ACQUIRE) != 0)
            return true;
    return false;
}

/* nvml.h: not on a GPU with MIG instances */
static bool no_rows(const struct mock_gpu *gpu)
{
    return gpu->remap_correctable < 0 || has_instances(gpu);
}

nvmlReturn_t impl_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                            unsigned int *isPending, unsigned int *failureOccurred)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (corrRows == NULL || uncRows == NULL || isPending == NULL || failureOccurred == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (no_rows(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrRows = (unsigned int)gpu->remap_correctable;
    *uncRows = (unsigned int)gpu->remap_uncorrectable;
    *isPending = (unsigned int)gpu->remap_pending;
    *failureOccurred = (unsigned int)gpu->remap_failure;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (no_rows(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlRemappedRowsInfo_v2_t){
        .corrActiveRemaps = (unsigned int)gpu->remap_correctable,
        .uncActiveRemaps = (unsigned int)gpu->remap_uncorrectable,
        .bPending = (unsigned int)gpu->remap_pending,
        .bFailureOccurred = (unsigned int)gpu->remap_failure,
    };
    return NVML_SUCCESS;
}

/* A remapped row takes its bank from "max" to "high". */
nvmlReturn_t impl_nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (values == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (no_rows(gpu) || gpu->remap_banks < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const int64_t remapped = gpu->remap_correctable + gpu->remap_uncorrectable;
    const unsigned int used = (unsigned int)(remapped < gpu->remap_banks ? remapped : gpu->remap_banks);
    *values = (nvmlRowRemapperHistogramValues_t){.max = (unsigned int)gpu->remap_banks - used, .high = used};
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *repairStatus)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (repairStatus == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (repairStatus->version != MOCK_VERSION_OF(nvmlRepairStatus_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu->channel_repair_pending < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    repairStatus->bChannelRepairPending = (unsigned int)gpu->channel_repair_pending;
    repairStatus->bTpcRepairPending = (unsigned int)gpu->tpc_repair_pending;
    return NVML_SUCCESS;
}

/* Boards before Ampere retire pages. How many is set from outside; their addresses and times are made up, each its own. */
static nvmlReturn_t retired_pages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                  unsigned long long *addresses, unsigned long long *timestamps, bool timed)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (count == NULL || (unsigned int)cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    const bool is_double = cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR;
    const int64_t retired = is_double ? gpu->retired_double : gpu->retired_single;
    if (retired < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const unsigned int room = *count;
    if (room > 0 && (addresses == NULL || (timed && timestamps == NULL)))
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)retired;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; ++i) {
        addresses[i] = ((is_double ? 1ULL << 20U : 0ULL) + i) << 12U;
        if (timed)
            timestamps[i] = 1577836800000000ULL + addresses[i]; /* microseconds, from 2020 on */
    }
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                            unsigned int *pageCount, unsigned long long *addresses)
{
    return retired_pages(device, cause, pageCount, addresses, NULL, false);
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                               unsigned int *pageCount, unsigned long long *addresses,
                                               unsigned long long *timestamps)
{
    return retired_pages(device, cause, pageCount, addresses, timestamps, true);
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *isPending)
{
    MOCK_GIVE(isPending, mock_gpu(device)->retired_pending);
}
