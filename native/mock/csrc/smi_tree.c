/* What nvidia-smi -q says of a GPU, whatever it is printed as. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi_tree.h"

struct element {
    unsigned int depth;
    const char *name, *filling;
};

#include "smi_tree_fields.h"

static const struct smi_style *style;

static void set(char room[TEXT_ROOM], nvmlReturn_t code, const char *format, unsigned long long value)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (code == NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, format, value);
#pragma GCC diagnostic pop
}

static const char *word(const char *const words[], size_t count, unsigned int number)
{
    return number < count && words[number] != NULL ? words[number] : "N/A";
}

#define WORD(words, number) word(words, sizeof(words) / sizeof(*(words)), number)

static void pci_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlPciInfoExt_t pci = {.version = MOCK_VERSION_OF(nvmlPciInfoExt_v1_t, 1)};
    const nvmlReturn_t code = nvmlDeviceGetPciInfoExt(device, &pci);
    if (strcmp(what, "bus") == 0)
        set(room, code, "%02llX", pci.bus);
    else if (strcmp(what, "device") == 0)
        set(room, code, "%02llX", pci.device);
    else if (strcmp(what, "domain") == 0)
        set(room, code, "%04llX", pci.domain);
    else if (strcmp(what, "base") == 0)
        set(room, code, "%llX", pci.baseClass);
    else if (strcmp(what, "sub") == 0)
        set(room, code, "%llX", pci.subClass);
    else
        set(room, code, "%08llX", strcmp(what, "id") == 0 ? pci.pciDeviceId : pci.pciSubSystemId);
}

static void row_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    unsigned int corrected = 0, uncorrected = 0, pending = 0, failure = 0;
    const nvmlReturn_t code = nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &pending, &failure);
    if (strcmp(what, "corr") == 0 || strcmp(what, "unc") == 0)
        set(room, code, "%llu", what[0] == 'c' ? corrected : uncorrected);
    else
        set(room, code, (what[0] == 'p' ? pending : failure) ? "Yes" : "No", 0);
}

static void page_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlEnableState_t pending = NVML_FEATURE_DISABLED;
    unsigned int count = 0;
    if (what[0] == 'p') {
        const nvmlReturn_t code = nvmlDeviceGetRetiredPagesPendingStatus(device, &pending);
        set(room, code, pending == NVML_FEATURE_ENABLED ? "Yes" : "No", 0);
        return;
    }
    const nvmlPageRetirementCause_t cause = what[0] == 's' ? NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS
                                                           : NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR;
    const nvmlReturn_t code = nvmlDeviceGetRetiredPages(device, cause, &count, NULL);
    set(room, code == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : code, "%llu", count);
}

static void bank_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlRowRemapperHistogramValues_t banks = {0};
    const nvmlReturn_t code = nvmlDeviceGetRowRemapperHistogram(device, &banks);
    set(room, code, "%llu bank(s)", strcmp(what, "max") == 0 ? banks.max : strcmp(what, "high") == 0 ? banks.high : 0);
}

static void bar1_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlBAR1Memory_t bar1 = {0};
    const nvmlReturn_t code = nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
    set(room, code, "%llu MiB", (what[0] == 't' ? bar1.bar1Total : what[0] == 'u' ? bar1.bar1Used : bar1.bar1Free) >> 20U);
}

static void repair_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    nvmlRepairStatus_t repair = {.version = MOCK_VERSION_OF(nvmlRepairStatus_v1_t, 1)};
    const nvmlReturn_t code = nvmlDeviceGetRepairStatus(device, &repair);
    set(room, code, (what[0] == 'c' ? repair.bChannelRepairPending : repair.bTpcRepairPending) ? "Yes" : "No", 0);
}

static void fabric_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const char *const states[] = {"N/A", "Not Started", "In Progress", "Completed"};
    nvmlGpuFabricInfo_v3_t info = {.version = MOCK_VERSION_OF(nvmlGpuFabricInfo_v3_t, 3)};
    const nvmlReturn_t code = nvmlDeviceGetGpuFabricInfoV(device, &info);
    if (code != NVML_SUCCESS)
        return;
    if (strcmp(what, "state") == 0) {
        snprintf(room, TEXT_ROOM, "%s", WORD(states, info.state));
    } else if (strcmp(what, "status") == 0) {
        snprintf(room, TEXT_ROOM, "%s", nvmlErrorString(info.status));
    } else if (strcmp(what, "clique") == 0) {
        set(room, code, "%llu", info.cliqueId);
    } else {
        char *at = room;
        for (unsigned int i = 0; i < NVML_GPU_FABRIC_UUID_LEN; ++i)
            at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)info.clusterUuid[i]);
    }
}

static void kind_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const char *const brands[] = {[0] = "Unknown", [1] = "Quadro", [2] = "Tesla", [5] = "GeForce",
                                         [6] = "Titan",   [12] = "NVIDIA RTX", [14] = "NVIDIA"};
    static const char *const architectures[] = {[6] = "Turing", [7] = "Ampere", [8] = "Ada Lovelace", [9] = "Hopper",
                                                [10] = "Blackwell", [13] = "Rubin"};
    static const char *const addressing[] = {"None", "HMM", "ATS"};
    static const char *const virtualization[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"};
    nvmlBrandType_t brand = NVML_BRAND_UNKNOWN;
    nvmlDeviceArchitecture_t architecture = 0;
    nvmlDeviceAddressingMode_t mode = {.version = MOCK_VERSION_OF(nvmlDeviceAddressingMode_v1_t, 1)};
    nvmlGpuVirtualizationMode_t virtual = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    const char *said = "N/A";
    if (strcmp(what, "brand") == 0 && nvmlDeviceGetBrand(device, &brand) == NVML_SUCCESS)
        said = WORD(brands, brand);
    else if (strcmp(what, "architecture") == 0 && nvmlDeviceGetArchitecture(device, &architecture) == NVML_SUCCESS)
        said = WORD(architectures, architecture);
    else if (strcmp(what, "addressing") == 0 && nvmlDeviceGetAddressingMode(device, &mode) == NVML_SUCCESS)
        said = WORD(addressing, mode.value);
    else if (strcmp(what, "virtualization") == 0 && nvmlDeviceGetVirtualizationMode(device, &virtual) == NVML_SUCCESS)
        said = WORD(virtualization, virtual);
    snprintf(room, TEXT_ROOM, "%s", said);
}

static void board_value(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"};
    nvmlC2cModeInfo_v1_t c2c = {0};
    nvmlFieldValue_t field = {.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION};
    unsigned int id = 0;
    char text[TEXT_ROOM] = "";
    const nvmlReturn_t known = nvmlDeviceGetBoardId(device, &id), coherent = nvmlDeviceGetC2cModeInfoV(device, &c2c);
    if (strcmp(what, "board_id") == 0)
        set(room, known, "0x%llx", id);
    else if (strcmp(what, "part") == 0)
        snprintf(room, TEXT_ROOM, "%s", smi_text(text, nvmlDeviceGetBoardPartNumber(device, text, sizeof(text))));
    else if (strcmp(what, "gpu_part") == 0) /* no function of nvml.h gives it */
        snprintf(room, TEXT_ROOM, "%s", smi_text(text, mock_text(&mock_gpu(device)->gpu_part_number, text, sizeof(text))));
    else if (strcmp(what, "gsp") == 0)
        snprintf(room, TEXT_ROOM, "%s", smi_text(text, nvmlDeviceGetGspFirmwareVersion(device, text)));
    else if (strcmp(what, "c2c") == 0)
        set(room, coherent, c2c.isC2cEnabled ? "Enabled" : "Disabled", 0);
    else if (nvmlDeviceGetFieldValues(device, 1, &field) == NVML_SUCCESS && field.nvmlReturn == NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "%s", WORD(actions, field.value.uiVal));
}

void smi_special(const char *what, nvmlDevice_t device, char room[TEXT_ROOM])
{
    static const struct {
        const char *prefix;
        void (*give)(const char *, nvmlDevice_t, char *);
    } families[] = {{"pci_", pci_value},   {"rows_", row_value},     {"banks_", bank_value}, {"bar1_", bar1_value},
                    {"repair_", repair_value}, {"fabric_", fabric_value}, {"pages_", page_value}};
    snprintf(room, TEXT_ROOM, "N/A");
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); ++i)
        if (strncmp(what, families[i].prefix, strlen(families[i].prefix)) == 0) {
            families[i].give(what + strlen(families[i].prefix), device, room);
            return;
        }
    const bool kind = strcmp(what, "brand") == 0 || strcmp(what, "architecture") == 0 ||
                      strcmp(what, "addressing") == 0 || strcmp(what, "virtualization") == 0;
    (kind ? kind_value : board_value)(what, device, room);
}

static void number(unsigned int depth, const char *name, const char *format, unsigned long long value)
{
    char text[TEXT_ROOM];
    set(text, NVML_SUCCESS, format, value);
    style->leaf(depth, name, text);
}

static void mig_device(unsigned int index, nvmlDevice_t device)
{
    nvmlDeviceAttributes_t attributes = {0};
    nvmlMemory_t memory = {0};
    unsigned int gi = 0, ci = 0;
    if (nvmlDeviceGetGpuInstanceId(device, &gi) != NVML_SUCCESS || nvmlDeviceGetComputeInstanceId(device, &ci) != NVML_SUCCESS ||
        nvmlDeviceGetAttributes_v2(device, &attributes) != NVML_SUCCESS ||
        nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
        return; /* it went while it was looked at */
    style->open(3, "mig_device");
    number(4, "index", "%llu", index);
    number(4, "gpu_instance_id", "%llu", gi);
    number(4, "compute_instance_id", "%llu", ci);
    style->open(4, "device_attributes");
    style->open(5, "shared");
    number(6, "multiprocessor_count", "%llu", attributes.multiprocessorCount);
    number(6, "copy_engine_count", "%llu", attributes.sharedCopyEngineCount);
    number(6, "encoder_count", "%llu", attributes.sharedEncoderCount);
    number(6, "decoder_count", "%llu", attributes.sharedDecoderCount);
    number(6, "ofa_count", "%llu", attributes.sharedOfaCount);
    number(6, "jpg_count", "%llu", attributes.sharedJpegCount);
    style->close(5, "shared");
    style->close(4, "device_attributes");
    style->open(4, "fb_memory_usage");
    number(5, "total", "%llu MiB", memory.total >> 20U);
    number(5, "reserved", "%llu MiB", 0);
    number(5, "used", "%llu MiB", memory.used >> 20U);
    number(5, "free", "%llu MiB", memory.free >> 20U);
    style->close(4, "fb_memory_usage");
    style->close(3, "mig_device");
}

static void mig_devices(nvmlDevice_t device)
{
    unsigned int most = 0;
    nvmlDevice_t mig;
    if (nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS || most == 0) {
        style->leaf(2, "mig_devices", "None");
        return;
    }
    style->open(2, "mig_devices");
    for (unsigned int index = 0; index < most; ++index)
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, index, &mig) == NVML_SUCCESS)
            mig_device(index, mig);
    style->close(2, "mig_devices");
}

static void process_list(nvmlDevice_t device, const char *type,
                         nvmlReturn_t (*get)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *))
{
    nvmlProcessInfo_t found[MOCK_MAX_PROCESSES];
    unsigned int count = MOCK_MAX_PROCESSES;
    if (get(device, &count, found) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < count; ++i) {
        char text[TEXT_ROOM];
        const bool mig = found[i].gpuInstanceId != 0xFFFFFFFFU;
        style->open(3, "process_info");
        number(4, "gpu_instance_id", mig ? "%llu" : "N/A", found[i].gpuInstanceId);
        number(4, "compute_instance_id", mig ? "%llu" : "N/A", found[i].computeInstanceId);
        number(4, "pid", "%llu", found[i].pid);
        style->leaf(4, "type", type);
        style->leaf(4, "process_name", smi_text(text, nvmlSystemGetProcessName(found[i].pid, text, sizeof(text))));
        number(4, "used_memory", "%llu MiB", found[i].usedGpuMemory >> 20U);
        style->close(3, "process_info");
    }
}

static void processes(nvmlDevice_t device)
{
    style->open(2, "processes");
    process_list(device, "C", nvmlDeviceGetComputeRunningProcesses_v3);
    process_list(device, "G", nvmlDeviceGetGraphicsRunningProcesses_v3);
    process_list(device, "M+C", nvmlDeviceGetMPSComputeRunningProcesses_v3);
    style->close(2, "processes");
}

static void element(const struct element *of, unsigned int index, nvmlDevice_t device, unsigned long long reasons)
{
    char field[TEXT_ROOM], room[TEXT_ROOM];
    const char *filling = of->filling, *unit;
    if (*filling == '<' || *filling == '>') {
        (*filling == '<' ? style->open : style->close)(of->depth, of->name);
    } else if (strcmp(filling, "@mig") == 0) {
        mig_devices(device);
    } else if (strcmp(filling, "@processes") == 0) {
        processes(device);
    } else if (*filling == '=' || *filling == '\0') {
        style->leaf(of->depth, of->name, filling + (*filling == '='));
    } else if (*filling == '!') {
        style->leaf(of->depth, of->name, (reasons & strtoull(filling + 1, NULL, 10)) != 0 ? "Active" : "Not Active");
    } else if (*filling == '@') {
        smi_special(filling + 1, device, room);
        style->leaf(of->depth, of->name, room);
    } else {
        snprintf(field, sizeof(field), "%.*s", (int)strcspn(filling, "+"), filling);
        const char *plus = strchr(filling, '+');
        (void)smi_field(field, index, device, room, &unit);
        const bool missing = strcmp(room, "[N/A]") == 0;
        const size_t length = strlen(room);
        if (!missing)
            snprintf(room + length, TEXT_ROOM - length, "%s", plus != NULL ? plus + 1 : unit);
        style->leaf(of->depth, of->name, missing ? "N/A" : room);
    }
}

static nvmlReturn_t gpu(unsigned int index, nvmlDevice_t device, const void *argument)
{
    nvmlPciInfo_t pci = {0};
    unsigned long long reasons = 0;
    (void)argument;
    const nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &pci);
    if (nvmlDeviceGetCurrentClocksEventReasons(device, &reasons) != NVML_SUCCESS)
        reasons = 0;
    style->gpu(result == NVML_SUCCESS ? pci.busId : nvmlErrorString(result));
    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); ++i)
        element(&elements[i], index, device, reasons);
    style->gpu_end();
    return result;
}

nvmlReturn_t smi_tree(const struct smi_options *options, const struct smi_style *with)
{
    char text[TEXT_ROOM];
    unsigned int count = 0;
    int cuda = 0;
    const time_t now = time(NULL);
    style = with;
    strftime(text, sizeof(text), "%a %b %d %H:%M:%S %Y", localtime(&now));
    style->leaf(1, "timestamp", text);
    style->leaf(1, "driver_version", smi_text(text, nvmlSystemGetDriverVersion(text, sizeof(text))));
    const nvmlReturn_t code = nvmlSystemGetCudaDriverVersion_v2(&cuda);
    snprintf(text, sizeof(text), "%d.%d", cuda / 1000, cuda % 1000 / 10);
    style->leaf(1, "cuda_version", code == NVML_SUCCESS ? text : "N/A");
    const nvmlReturn_t counted = nvmlDeviceGetCount_v2(&count);
    snprintf(text, sizeof(text), "%u", count);
    style->leaf(1, "attached_gpus", text);
    const nvmlReturn_t result = smi_for_each(options, gpu, NULL);
    return counted != NVML_SUCCESS ? counted : result;
}
