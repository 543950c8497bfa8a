/*
 * A small NVML for the binding's own tests. It reads "<its own path>.conf", again when that is replaced, so several copies live in one
 * process, each with a node of its own:
 *   gpu <address>                 one GPU more, in the order of their indices
 *   code <function> <address|*> <number>
 *   text <function> <address|*> <hexadecimal bytes>
 *   hang <function> <address|*>   the call does not come back while the line stands there
 *   links <number of links>
 * and those of stub_mig.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvml.h"

static int initialised;
static char addresses[32][32];

struct line {
    char verb[16];
    char function[128];
    char address[64];
    char value[512];
};
static struct line lines[128];
static unsigned int line_count;
static unsigned int refreshed; /* how often they were read */
static int set_mode[32];
static int set_persistence[32] = {[0 ... 31] = 1};

/* Read anew only when the file was replaced, as the tests do. */
static void refresh(void)
{
    static struct stat last;
    static char path[4096];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct stat now;
    Dl_info self;
    pthread_mutex_lock(&lock);
    if (path[0] == '\0') {
        dladdr((void *)&refresh, &self);
        snprintf(path, sizeof(path), "%s.conf", self.dli_fname);
    }
    if (stat(path, &now) == 0 && (now.st_ino != last.st_ino || now.st_mtim.tv_nsec != last.st_mtim.tv_nsec)) {
        char text[1024];
        FILE *file = fopen(path, "r");
        last = now;
        line_count = 0;
        refreshed++;
        while (file != NULL && line_count < 128 && fgets(text, sizeof(text), file) != NULL) {
            struct line *line = &lines[line_count++];
            memset(line, 0, sizeof(*line));
            sscanf(text, "%15s %127s %63s %511s", line->verb, line->function, line->address, line->value);
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    pthread_mutex_unlock(&lock);
}

static int find(const char *verb, const char *function, const char *address, char *value)
{
    refresh();
    for (unsigned int i = 0; i < line_count; i++) {
        const struct line *line = &lines[i];
        if (strcmp(line->verb, verb) == 0 && strcmp(line->function, function) == 0 &&
            (line->address[0] == '*' || strcasecmp(line->address, address) == 0)) {
            strcpy(value, line->value);
            return 1;
        }
    }
    return 0;
}

static unsigned int load(void)
{
    unsigned int count = 0;
    refresh();
    for (unsigned int i = 0; i < line_count; i++) {
        if (strcmp(lines[i].verb, "gpu") == 0 && count < 32) {
            strncpy(addresses[count++], lines[i].function, sizeof(addresses[0]) - 1);
        }
    }
    return count;
}

static int number(const char *verb, int otherwise)
{
    refresh();
    for (unsigned int i = 0; i < line_count; i++) {
        if (strcmp(lines[i].verb, verb) == 0) {
            return atoi(lines[i].function);
        }
    }
    return otherwise;
}

static int gate(const char *function, const void *device)
{
    char value[512];
    const char *address = device != NULL ? (const char *)device : "-";
    while (find("hang", function, address, value)) {
        usleep(2000);
    }
    if (find("code", function, address, value)) {
        return atoi(value);
    }
    return initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static int text(const char *function, const void *device, char *out, unsigned int length, const char *plain)
{
    char value[512];
    int code = gate(function, device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (find("text", function, device != NULL ? (const char *)device : "-", value)) {
        for (unsigned int i = 0; i < length && value[2 * i] != '\0'; i++) {
            unsigned int byte = 0;
            sscanf(&value[2 * i], "%2x", &byte);
            out[i] = (char)byte;
        }
        return NVML_SUCCESS;
    }
    snprintf(out, length, "%s", plain);
    return NVML_SUCCESS;
}

#define GATE(device)                                  \
    do {                                              \
        int code_ = gate(__func__, device);           \
        if (code_ != NVML_SUCCESS) {                  \
            return (nvmlReturn_t)code_;               \
        }                                             \
    } while (0)

#define DEVICE_NUMBER(function, type, value)          \
    nvmlReturn_t function(nvmlDevice_t device, type *out) \
    {                                                 \
        GATE(device);                                 \
        *out = (type)(value);                         \
        return NVML_SUCCESS;                          \
    }

#define DEVICE_TEXT(function, plain)                  \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) \
    {                                                 \
        return (nvmlReturn_t)text(__func__, device, out, length, plain); \
    }

static unsigned int index_of(nvmlDevice_t device)
{
    return (unsigned int)(((const char *)device - addresses[0]) / (long)sizeof(addresses[0]));
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    char value[512];
    while (find("hang", __func__, "-", value)) {
        usleep(2000);
    }
    if (find("code", __func__, "-", value)) {
        return (nvmlReturn_t)atoi(value);
    }
    if (flags != NVML_INIT_FLAG_NO_GPUS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    initialised++;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS); }
nvmlReturn_t nvmlShutdown(void)
{
    GATE(NULL);
    initialised--;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int length)
{
    return (nvmlReturn_t)text(__func__, NULL, out, length, "580.105.08");
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int length)
{
    return (nvmlReturn_t)text(__func__, NULL, out, length, "13.580.105.08");
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    GATE(NULL);
    *out = 13000;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out)
{
    GATE(NULL);
    *out = load();
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out)
{
    if (index >= load()) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    GATE(addresses[index]);
    *out = (nvmlDevice_t)addresses[index];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *out)
{
    unsigned int count = load();
    GATE(address);
    for (unsigned int i = 0; i < count; i++) {
        if (strcasecmp(addresses[i], address) == 0) {
            *out = (nvmlDevice_t)addresses[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *out)
{
    char value[512];
    int code = gate(function, device);
    if (code != NVML_SUCCESS) {
        return (nvmlReturn_t)code;
    }
    sscanf((const char *)device, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pciDeviceId = 0x233010DEu;
    out->pciSubSystemId = 0x16C110DEu;
    if (find("text", function, (const char *)device, value)) {
        return (nvmlReturn_t)text(function, device, out->busId, sizeof(out->busId), "");
    }
    snprintf(out->busId, sizeof(out->busId), "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *out) { return pci_info(__func__, d, out); }
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_t *out) { return pci_info(__func__, d, out); }
static int mig_uuid(nvmlDevice_t device, char *out, unsigned int length);
static int mig_on(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length)
{
    char plain[64];
    int code = mig_uuid(device, out, length);
    if (code >= 0) {
        return (nvmlReturn_t)code;
    }
    snprintf(plain, sizeof(plain), "GPU-00000000-0000-0000-0000-%012u", index_of(device));
    return (nvmlReturn_t)text(__func__, device, out, length, plain);
}
DEVICE_TEXT(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
DEVICE_TEXT(nvmlDeviceGetSerial, "1650000000001")
DEVICE_TEXT(nvmlDeviceGetBoardPartNumber, "692-2G520-0200-000")
DEVICE_TEXT(nvmlDeviceGetVbiosVersion, "96.00.61.00.01")
DEVICE_NUMBER(nvmlDeviceGetIndex, unsigned int, index_of(device))
DEVICE_NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
DEVICE_NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, NVML_DEVICE_ARCH_HOPPER)
DEVICE_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, index_of(device))
DEVICE_NUMBER(nvmlDeviceGetModuleId, unsigned int, 7 - index_of(device))
DEVICE_NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, set_mode[index_of(device)])
DEVICE_NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, set_persistence[index_of(device)])
DEVICE_NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
DEVICE_NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, 2)
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    GATE(device);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    GATE(device);
    out->total = 1000;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    GATE(device);
    if (out->version != nvmlMemory_v2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    out->total = 85520809984ULL;
    out->reserved = 700000000ULL;
    out->used = 12345ULL;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    GATE(device);
    out->bar1Total = 137438953472ULL;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *out)
{
    GATE(device);
    if (out->version != nvmlDeviceAddressingMode_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    out->value = NVML_DEVICE_ADDRESSING_MODE_HMM;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    GATE(device);
    *current = NVML_FEATURE_ENABLED;
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    GATE(device);
    *current = mig_on(device) ? 1 : 0;
    *pending = 1;
    return NVML_SUCCESS;
}
static nvmlReturn_t link_gate(const char *function, nvmlDevice_t device, unsigned int link)
{
    char named[128];
    int code = gate(function, device);
    if (code == NVML_SUCCESS) {
        snprintf(named, sizeof(named), "%s/%u", function, link);
        code = gate(named, device);
    }
    return (nvmlReturn_t)code;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *out)
{
    nvmlReturn_t code = link_gate(__func__, device, link);
    if (code == NVML_SUCCESS && (int)link >= number("links", 18)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *out = link == 17 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return code;
}
nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *out)
{
    *out = 6;
    return link_gate(__func__, device, link);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *out)
{
    snprintf(out->busId, sizeof(out->busId), "00000000:%02X:00.0", 0xA0 + link % 4);
    return link_gate(__func__, device, link);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *out)
{
    *out = NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return link_gate(__func__, device, link);
}
static const unsigned char CLUSTER[16] = {0xDE, 0xAD, 0xBE, 0xEF, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    GATE(device);
    memcpy(out->clusterUuid, CLUSTER, sizeof(CLUSTER));
    out->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    out->cliqueId = 1;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    unsigned int version = out->version >> 24;
    GATE(device);
    if ((int)version > number("fabric", 3)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memcpy(out->clusterUuid, CLUSTER, sizeof(CLUSTER));
    out->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    out->status = NVML_SUCCESS;
    out->cliqueId = version;
    out->healthMask = 0x1555;
    return NVML_SUCCESS;
}
#include "stub_mig.h"
#include "stub_health.h"
