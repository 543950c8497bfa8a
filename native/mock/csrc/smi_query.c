/* nvidia-smi --query-gpu: one value a field, without a header or unit where the format says so. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi.h"

static const char *give(char room[TEXT_ROOM], nvmlReturn_t code, const char *text)
{
    if (code == NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "%s", text);
    else
        snprintf(room, TEXT_ROOM, "[N/A]");
    return room;
}

static void mode(char room[TEXT_ROOM], nvmlReturn_t code, unsigned int value)
{
    give(room, code, value == 1 ? "Enabled" : "Disabled");
}

static void number(char room[TEXT_ROOM], nvmlReturn_t code, unsigned long long value)
{
    char text[TEXT_ROOM];
    snprintf(text, sizeof(text), "%llu", value);
    give(room, code, text);
}

static bool text_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const struct {
        const char *name;
        nvmlReturn_t (*get)(nvmlDevice_t, char *, unsigned int);
    } texts[] = {{"name", nvmlDeviceGetName},
                 {"gpu_name", nvmlDeviceGetName},
                 {"uuid", nvmlDeviceGetUUID},
                 {"gpu_uuid", nvmlDeviceGetUUID},
                 {"serial", nvmlDeviceGetSerial},
                 {"gpu_serial", nvmlDeviceGetSerial},
                 {"vbios_version", nvmlDeviceGetVbiosVersion},
                 {"inforom.img", nvmlDeviceGetInforomImageVersion}};
    char text[TEXT_ROOM] = "";
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); ++i)
        if (strcmp(name, texts[i].name) == 0) {
            const nvmlReturn_t code = texts[i].get(device, text, TEXT_ROOM - 1);
            text[TEXT_ROOM - 1] = '\0';
            give(room, code, text);
            return true;
        }
    return false;
}

static bool number_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    static const struct {
        const char *name, *unit;
        nvmlReturn_t (*get)(nvmlDevice_t, unsigned int *);
    } numbers[] = {{"minor_number", "", nvmlDeviceGetMinorNumber},
                   {"module_id", "", nvmlDeviceGetModuleId},
                   {"fan.speed", " %", nvmlDeviceGetFanSpeed},
                   {"pcie.link.gen.max", "", nvmlDeviceGetMaxPcieLinkGeneration},
                   {"pcie.link.gen.current", "", nvmlDeviceGetCurrPcieLinkGeneration},
                   {"pcie.link.gen.gpucurrent", "", nvmlDeviceGetCurrPcieLinkGeneration},
                   {"pcie.link.gen.gpumax", "", nvmlDeviceGetGpuMaxPcieLinkGeneration},
                   {"pcie.link.width.max", "", nvmlDeviceGetMaxPcieLinkWidth},
                   {"pcie.link.width.current", "", nvmlDeviceGetCurrPcieLinkWidth}};
    unsigned int value = 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); ++i)
        if (strcmp(name, numbers[i].name) == 0) {
            const nvmlReturn_t code = numbers[i].get(device, &value);
            number(room, code, value);
            *unit = numbers[i].unit;
            return true;
        }
    return false;
}

static bool memory_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    nvmlMemory_v2_t memory = {.version = MOCK_VERSION_OF(nvmlMemory_v2_t, 2)};
    if (strncmp(name, "memory.", 7) != 0)
        return false;
    const nvmlReturn_t code = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    const char *kind = name + 7;
    const unsigned long long *value = strcmp(kind, "total") == 0      ? &memory.total
                                      : strcmp(kind, "used") == 0     ? &memory.used
                                      : strcmp(kind, "free") == 0     ? &memory.free
                                      : strcmp(kind, "reserved") == 0 ? &memory.reserved
                                                                      : NULL;
    if (value == NULL)
        return false;
    number(room, code, *value >> 20U);
    *unit = " MiB";
    return true;
}

static bool power_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    unsigned int low = 0, high = 0, value = 0;
    nvmlReturn_t code;
    char text[TEXT_ROOM];
    if (strcmp(name, "power.draw") == 0 || strcmp(name, "power.draw.instant") == 0) {
        code = nvmlDeviceGetPowerUsage(device, &value);
    } else if (strcmp(name, "power.limit") == 0) {
        code = nvmlDeviceGetPowerManagementLimit(device, &value);
    } else if (strcmp(name, "enforced.power.limit") == 0) {
        code = nvmlDeviceGetEnforcedPowerLimit(device, &value);
    } else if (strcmp(name, "power.default_limit") == 0) {
        code = nvmlDeviceGetPowerManagementDefaultLimit(device, &value);
    } else if (strcmp(name, "power.min_limit") == 0 || strcmp(name, "power.max_limit") == 0) {
        code = nvmlDeviceGetPowerManagementLimitConstraints(device, &low, &high);
        value = name[7] == 'i' ? low : high;
    } else {
        return false;
    }
    snprintf(text, sizeof(text), "%.2f", value / 1000.0);
    give(room, code, text);
    *unit = " W";
    return true;
}

static bool clock_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    static const struct {
        const char *name;
        nvmlClockType_t type;
    } clocks[] = {{"gr", NVML_CLOCK_GRAPHICS}, {"graphics", NVML_CLOCK_GRAPHICS}, {"sm", NVML_CLOCK_SM},
                  {"mem", NVML_CLOCK_MEM},     {"memory", NVML_CLOCK_MEM},        {"video", NVML_CLOCK_VIDEO}};
    const bool most = strncmp(name, "clocks.max.", 11) == 0;
    unsigned int value = 0;
    const char *kind = most ? name + 11 : strncmp(name, "clocks.current.", 15) == 0 ? name + 15 : name + 7;
    if (strncmp(name, "clocks.", 7) != 0)
        return false;
    for (size_t i = 0; i < sizeof(clocks) / sizeof(*clocks); ++i)
        if (strcmp(kind, clocks[i].name) == 0) {
            const nvmlReturn_t code = most ? nvmlDeviceGetMaxClockInfo(device, clocks[i].type, &value)
                                           : nvmlDeviceGetClockInfo(device, clocks[i].type, &value);
            number(room, code, value);
            *unit = " MHz";
            return true;
        }
    return false;
}

static bool mode_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const char *const compute[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned int current = 0, pending = 0;
    nvmlReturn_t code;
    const bool later = strstr(name, ".pending") != NULL;
    if (strncmp(name, "mig.mode.", 9) == 0) {
        code = nvmlDeviceGetMigMode(device, &current, &pending);
    } else if (strncmp(name, "ecc.mode.", 9) == 0) {
        code = nvmlDeviceGetEccMode(device, (nvmlEnableState_t *)&current, (nvmlEnableState_t *)&pending);
    } else if (strcmp(name, "persistence_mode") == 0) {
        code = nvmlDeviceGetPersistenceMode(device, (nvmlEnableState_t *)&current);
    } else if (strcmp(name, "compute_mode") == 0) {
        code = nvmlDeviceGetComputeMode(device, (nvmlComputeMode_t *)&current);
        give(room, code, compute[current & 3U]);
        return true;
    } else {
        return false;
    }
    mode(room, code, later ? pending : current);
    return true;
}

static bool load_field(const char *name, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    nvmlUtilization_t rates = {0};
    unsigned int value = 0, period;
    unsigned long long errors = 0;
    nvmlReturn_t code;
    *unit = " %";
    if (strcmp(name, "utilization.gpu") == 0 || strcmp(name, "utilization.memory") == 0) {
        code = nvmlDeviceGetUtilizationRates(device, &rates);
        number(room, code, name[12] == 'g' ? rates.gpu : rates.memory);
    } else if (strcmp(name, "utilization.encoder") == 0) {
        code = nvmlDeviceGetEncoderUtilization(device, &value, &period);
        number(room, code, value);
    } else if (strcmp(name, "utilization.decoder") == 0) {
        code = nvmlDeviceGetDecoderUtilization(device, &value, &period);
        number(room, code, value);
    } else if (strcmp(name, "temperature.gpu") == 0) {
        nvmlTemperature_t heat = {.version = MOCK_VERSION_OF(nvmlTemperature_v1_t, 1)};
        code = nvmlDeviceGetTemperatureV(device, &heat);
        number(room, code, (unsigned int)heat.temperature);
        *unit = "";
    } else if (strncmp(name, "ecc.errors.", 11) == 0 && strstr(name, ".total") != NULL) {
        const bool corrected = strncmp(name + 11, "corrected", 9) == 0;
        code = nvmlDeviceGetTotalEccErrors(
            device, corrected ? NVML_MEMORY_ERROR_TYPE_CORRECTED : NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            strstr(name, "volatile") != NULL ? NVML_VOLATILE_ECC : NVML_AGGREGATE_ECC, &errors);
        number(room, code, errors);
        *unit = "";
    } else {
        return false;
    }
    return true;
}

static bool other_field(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlPciInfo_t pci = {0};
    unsigned int count = 0;
    int major = 0, minor = 0;
    nvmlPstates_t state = NVML_PSTATE_UNKNOWN;
    char text[TEXT_ROOM];
    if (strcmp(name, "index") == 0) {
        number(room, NVML_SUCCESS, index);
    } else if (strcmp(name, "count") == 0) {
        const nvmlReturn_t code = nvmlDeviceGetCount_v2(&count);
        number(room, code, count);
    } else if (strcmp(name, "driver_version") == 0) {
        give(room, nvmlSystemGetDriverVersion(text, sizeof(text)), text);
    } else if (strcmp(name, "compute_cap") == 0) {
        const nvmlReturn_t code = nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
        snprintf(text, sizeof(text), "%d.%d", major, minor);
        give(room, code, text);
    } else if (strcmp(name, "pstate") == 0) {
        const nvmlReturn_t code = nvmlDeviceGetPerformanceState(device, &state);
        snprintf(text, sizeof(text), "P%u", (unsigned int)state);
        give(room, code, text);
    } else if (strcmp(name, "timestamp") == 0) {
        const time_t now = time(NULL);
        strftime(room, TEXT_ROOM, "%Y/%m/%d %H:%M:%S.000", localtime(&now));
    } else if (strncmp(name, "pci.", 4) == 0 || strcmp(name, "gpu_bus_id") == 0) {
        const nvmlReturn_t code = nvmlDeviceGetPciInfo_v3(device, &pci);
        const char *kind = name[0] == 'g' ? "bus_id" : name + 4;
        if (strcmp(kind, "bus_id") == 0)
            snprintf(text, sizeof(text), "%s", pci.busId);
        else
            snprintf(text, sizeof(text), strcmp(kind, "domain") == 0 ? "0x%04X" : strcmp(kind, "bus") == 0 ||
                     strcmp(kind, "device") == 0 ? "0x%02X" : "0x%08X",
                     strcmp(kind, "domain") == 0 ? pci.domain : strcmp(kind, "bus") == 0 ? pci.bus
                     : strcmp(kind, "device") == 0 ? pci.device : strcmp(kind, "device_id") == 0 ? pci.pciDeviceId
                     : pci.pciSubSystemId);
        give(room, code, text);
    } else {
        return false;
    }
    return true;
}

bool smi_field(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    *unit = "";
    if (text_field(name, device, room) || mode_field(name, device, room) || other_field(name, index, device, room) ||
        number_field(name, device, room, unit) || memory_field(name, device, room, unit) ||
        power_field(name, device, room, unit) || clock_field(name, device, room, unit) ||
        load_field(name, device, room, unit) || smi_other_field(name, index, device, room, unit)) {
        if (strcmp(room, "[N/A]") == 0)
            *unit = "";
        return true;
    }
    return false;
}

struct query {
    const char *fields;
    bool units;
};

/* Calls something for every name of a list by comma, blanks around names left out. */
static bool next_name(const char **at, char name[TEXT_ROOM])
{
    *at += strspn(*at, " ,");
    const size_t length = strcspn(*at, ",");
    size_t end = length;
    while (end > 0 && (*at)[end - 1] == ' ')
        --end;
    snprintf(name, TEXT_ROOM, "%.*s", (int)(end < TEXT_ROOM ? end : TEXT_ROOM - 1), *at);
    *at += length;
    return end > 0;
}

static nvmlReturn_t row(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const struct query *query = argument;
    char name[TEXT_ROOM], room[TEXT_ROOM];
    const char *at = query->fields, *unit;
    for (bool first = true; next_name(&at, name); first = false) {
        (void)smi_field(name, index, device, room, &unit); /* the header has checked the names */
        printf("%s%s%s", first ? "" : ", ", room, query->units ? unit : "");
    }
    printf("\n");
    return NVML_SUCCESS;
}

static bool header(const char *fields, nvmlDevice_t device, bool print, bool units)
{
    char name[TEXT_ROOM], room[TEXT_ROOM];
    const char *at = fields, *unit;
    while (next_name(&at, name))
        if (!smi_field(name, 0, device, room, &unit)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return false;
        }
    at = fields;
    for (bool first = true; print && next_name(&at, name); first = false) {
        (void)smi_field(name, 0, device, room, &unit);
        printf("%s%s%s%s%s", first ? "" : ", ", name, *unit != '\0' && units ? " [" : "",
               units ? unit + (*unit == ' ') : "", *unit != '\0' && units ? "]" : "");
    }
    if (print)
        printf("\n");
    return true;
}

nvmlReturn_t smi_query(const struct smi_options *options, const char *fields)
{
    nvmlDevice_t first;
    const char *format = options->format != NULL ? options->format : "";
    const struct query query = {fields, strstr(format, "nounits") == NULL};
    const nvmlReturn_t result = nvmlDeviceGetHandleByIndex_v2(0, &first);
    if (result == NVML_ERROR_INVALID_ARGUMENT) {
        printf("No devices were found\n");
        return result;
    }
    if (result == NVML_SUCCESS && !header(fields, first, strstr(format, "noheader") == NULL, query.units))
        return NVML_ERROR_INVALID_ARGUMENT;
    return smi_for_each(options, row, &query);
}

static bool app_field(const char *name, nvmlDevice_t device, const nvmlProcessInfo_t *process, char room[TEXT_ROOM],
                      const char **unit)
{
    char text[TEXT_ROOM] = "";
    *unit = "";
    if (strcmp(name, "pid") == 0) {
        number(room, NVML_SUCCESS, process->pid);
    } else if (strcmp(name, "process_name") == 0 || strcmp(name, "name") == 0) {
        give(room, nvmlSystemGetProcessName(process->pid, text, sizeof(text)), text);
    } else if (strcmp(name, "used_gpu_memory") == 0 || strcmp(name, "used_memory") == 0) {
        number(room, NVML_SUCCESS, process->usedGpuMemory >> 20U);
        *unit = " MiB";
    } else {
        return strncmp(name, "gpu_", 4) == 0 && smi_field(name, 0, device, room, unit);
    }
    return true;
}

static nvmlReturn_t app_rows(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const struct query *query = argument;
    nvmlProcessInfo_t found[MOCK_MAX_PROCESSES];
    unsigned int count = MOCK_MAX_PROCESSES;
    char name[TEXT_ROOM], room[TEXT_ROOM];
    const char *unit;
    (void)index;
    const nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, found);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; ++i) {
        const char *at = query->fields;
        for (bool first = true; next_name(&at, name); first = false) {
            (void)app_field(name, device, &found[i], room, &unit); /* the header has checked the names */
            printf("%s%s%s", first ? "" : ", ", room, query->units ? unit : "");
        }
        printf("\n");
    }
    return result;
}

nvmlReturn_t smi_query_apps(const struct smi_options *options, const char *fields)
{
    const char *format = options->format != NULL ? options->format : "";
    const struct query query = {fields, strstr(format, "nounits") == NULL};
    const nvmlProcessInfo_t nobody = {0};
    char name[TEXT_ROOM], room[TEXT_ROOM];
    const char *at = fields, *unit;
    nvmlDevice_t device = mock_handle(0);
    if (device == NULL) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    while (next_name(&at, name))
        if (!app_field(name, device, &nobody, room, &unit)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
    at = fields;
    for (bool first = true; strstr(format, "noheader") == NULL; first = false) {
        if (!next_name(&at, name)) {
            printf("\n");
            break;
        }
        (void)app_field(name, device, &nobody, room, &unit);
        printf("%s%s%s", first ? "" : ", ", name, *unit != '\0' && query.units ? " [MiB]" : "");
    }
    return smi_for_each(options, app_rows, &query);
}
