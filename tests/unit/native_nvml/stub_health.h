/* Health, processes and topology in the small NVML of the tests; included by stub.c. `processes <n>`: how many run. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *out)
{
    char named[128];
    snprintf(named, sizeof(named), "%s/%d%d", __func__, (int)error, (int)counter);
    nvmlReturn_t code = (nvmlReturn_t)gate(named, device);
    *out = 10ULL * error + counter + 1;
    return code;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    GATE(device);
    *corrected = 3;
    *uncorrected = 4;
    *pending = 1;
    *failed = 0;
    return NVML_SUCCESS;
}
/* `retired0 <n>` and `retired1 <n>`: how many pages, by cause. */
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    char named[128];
    snprintf(named, sizeof(named), "%s/%d", __func__, (int)cause);
    nvmlReturn_t code = (nvmlReturn_t)gate(named, device);
    snprintf(named, sizeof(named), "retired%d", (int)cause);
    unsigned int room = *count;
    *count = (unsigned int)number(named, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? 6 : 5);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (room != 0 || addresses != NULL) {
        return NVML_ERROR_INVALID_ARGUMENT; /* nobody here wants the addresses */
    }
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    GATE(device);
    *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    GATE(device);
    if (status->version != nvmlRepairStatus_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    status->bTpcRepairPending = 1;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    char value[512];
    GATE(device);
    if (count != 1 || values->fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    values->value.uiVal = 2;
    values->nvmlReturn = find("code", "field", (const char *)device, value) ? (nvmlReturn_t)atoi(value) : NVML_SUCCESS;
    return NVML_SUCCESS;
}
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0x24)
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0x40)
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    GATE(device);
    if (out->version != nvmlTemperature_v1 || out->sensorType != NVML_TEMPERATURE_GPU) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    out->temperature = -3;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
    GATE(device);
    *out = 41 + (unsigned int)sensor;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    GATE(device);
    out->gpu = 97;
    out->memory = 12;
    return NVML_SUCCESS;
}
static nvmlReturn_t processes(const char *function, nvmlDevice_t device, unsigned int running, unsigned int *count,
                              nvmlProcessInfo_t *infos)
{
    int code = gate(function, device);
    unsigned int room = *count;
    if (code != NVML_SUCCESS) {
        return (nvmlReturn_t)code;
    }
    *count = running;
    if (room < running) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (unsigned int i = 0; i < running; i++) {
        infos[i].pid = 1000 + running - i;
        infos[i].usedGpuMemory = i == 0 ? ~0ULL : 1024ULL * i;
        infos[i].gpuInstanceId = i == 1 ? 7 : 0xFFFFFFFFU;
        infos[i].computeInstanceId = i == 1 ? 0 : 0xFFFFFFFFU;
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos)
{
    return processes(__func__, d, (unsigned int)number("processes", 2), count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos)
{
    return processes(__func__, d, 1, count, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos)
{
    return processes(__func__, d, 0, count, infos);
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *out)
{
    GATE(a);
    *out = index_of(a) / 2 == index_of(b) / 2 ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *out)
{
    GATE(a);
    *out = index == NVML_P2P_CAPS_INDEX_NVLINK && index_of(b) != 3 ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    GATE(device);
    if (words < 4) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    set[0] = 0x8000000000000001UL;
    set[3] = 2;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         nvmlAffinityScope_t scope)
{
    GATE(device);
    set[0] = scope == NVML_AFFINITY_SCOPE_NODE ? 1UL << index_of(device) / 2 : 0;
    return words == 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}
