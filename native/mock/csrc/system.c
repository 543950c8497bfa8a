/* Start and end, versions, enumeration: what NVML answers before anybody has a handle. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "mock.h"

nvmlReturn_t impl_nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* NO_GPUS and NO_ATTACH: a node without GPUs is a success here anyway */
    return mock_open("nvmlInitWithFlags");
}

nvmlReturn_t impl_nvmlInit_v2(void)
{
    return mock_open("nvmlInit_v2");
}

nvmlReturn_t impl_nvmlInit(void)
{
    return mock_open("nvmlInit");
}

nvmlReturn_t impl_nvmlShutdown(void)
{
    return mock_close();
}

/* The texts that libnvidia-ml gives, as nvidia-smi prints them. */
const char *impl_nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "RM has detected an NVML/RM version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "Freq not supported", "Argument version mismatch", "Deprecated", "Not Ready",
        "GPU not found", "Invalid state", "Reset type not supported",
    };
    return (unsigned int)result < sizeof(texts) / sizeof(*texts) ? texts[result] : "Unknown Error";
}

nvmlReturn_t impl_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return mock_text(&mock_node()->driver_version, version, length);
}

nvmlReturn_t impl_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return mock_text(&mock_node()->nvml_version, version, length);
}

nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    MOCK_GIVE(cudaDriverVersion, mock_node()->cuda_version);
}

nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    MOCK_GIVE(cudaDriverVersion, mock_node()->cuda_version);
}

nvmlReturn_t impl_nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    MOCK_GIVE(deviceCount, mock_count());
}

nvmlReturn_t impl_nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return impl_nvmlDeviceGetCount_v2(deviceCount);
}

nvmlReturn_t impl_nvmlUnitGetCount(unsigned int *unitCount)
{
    MOCK_GIVE(unitCount, 0);
}

nvmlReturn_t impl_nvmlGetExcludedDeviceCount(unsigned int *deviceCount)
{
    MOCK_GIVE(deviceCount, 0);
}

/* Hands a handle out: a lost GPU gives GPU_IS_LOST, and the rules for the lookup may name the GPU. */
static nvmlReturn_t hand_out(const char *function, nvmlDevice_t found, nvmlDevice_t *device)
{
    const nvmlReturn_t early = mock_reach(function, found);
    if (early == NVML_SUCCESS)
        *device = found;
    return early;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (device == NULL || mock_handle(index) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return hand_out("nvmlDeviceGetHandleByIndex_v2", mock_handle(index), device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return impl_nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool hexadecimal(const char **at, unsigned int at_most, unsigned long *value)
{
    unsigned int digits = 0;
    *value = 0;
    while (digits < at_most && isxdigit((unsigned char)(*at)[digits])) {
        const char digit = (char)tolower((unsigned char)(*at)[digits++]);
        *value = *value * 16 + (unsigned long)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    *at += digits;
    return digits > 0;
}

/* "domain:bus:device[.function]" or "bus:device[.function]", any case, any number of leading zeros up to eight. */
static bool parse_bus_id(const char *text, unsigned long part[3])
{
    const char *at = text;
    unsigned int count = 0;
    for (; count < 3 && hexadecimal(&at, 8, &part[count]); ++count) {
        if (*at != ':') {
            ++count;
            break;
        }
        ++at;
    }
    unsigned long function;
    if (*at == '.' && (++at, !hexadecimal(&at, 1, &function)))
        return false;
    if (count == 2) {
        part[2] = part[1];
        part[1] = part[0];
        part[0] = 0;
    }
    return *at == '\0' && count >= 2;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    unsigned long part[3] = {0};
    if (pciBusId == NULL || device == NULL || !parse_bus_id(pciBusId, part))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < mock_count(); ++i) {
        const struct mock_gpu *gpu = mock_gpu(mock_handle(i));
        if ((unsigned long)gpu->pci_domain == part[0] && (unsigned long)gpu->pci_bus == part[1] &&
            (unsigned long)gpu->pci_device == part[2])
            return hand_out("nvmlDeviceGetHandleByPciBusId_v2", mock_handle(i), device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return impl_nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

static bool text_is(const struct mock_text *text, const char *wanted)
{
    return text->length >= 0 && strlen(wanted) == (size_t)text->length &&
           strncasecmp(text->bytes, wanted, (size_t)text->length) == 0;
}

/* nvml.h on ByUUID: it initialises GPUs as it searches and returns GPU_IS_LOST if any GPU has fallen off the bus. */
static nvmlReturn_t any_lost(void)
{
    for (unsigned int i = 0; i < mock_count(); ++i)
        if (mock_presence(mock_handle(i)) != NVML_SUCCESS)
            return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

static nvmlDevice_t mig_by_uuid(nvmlDevice_t gpu, const char *uuid)
{
    const struct mock_gpu *record = mock_gpu(gpu);
    unsigned int position, gi, ci;
    char text[MOCK_UUID_ROOM];
    if (record->mig_current != 1 || !mock_position(gpu, &position))
        return NULL;
    for (unsigned int index = 0; index < (unsigned int)record->mig_compute_slices; ++index) {
        if (!mock_find_mig(record, index, &gi, &ci))
            continue;
        mock_mig_uuid(record, gi, ci, text);
        if (strcasecmp(text, uuid) == 0)
            return mock_instance_handle(MOCK_MIG_DEVICE, position, gi, ci);
    }
    return NULL;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (any_lost() != NVML_SUCCESS)
        return NVML_ERROR_GPU_IS_LOST;
    for (unsigned int i = 0; i < mock_count(); ++i) {
        if (text_is(&mock_gpu(mock_handle(i))->uuid, uuid))
            return hand_out("nvmlDeviceGetHandleByUUID", mock_handle(i), device);
        const nvmlDevice_t mig = mig_by_uuid(mock_handle(i), uuid);
        if (mig != NULL)
            return hand_out("nvmlDeviceGetHandleByUUID", mig, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* The ASCII form is no C string of its own: 41 bytes, with or without a NUL. The binary form is the UUID's 16 bytes. */
nvmlReturn_t impl_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    char text[NVML_DEVICE_UUID_ASCII_LEN + 1] = "GPU-";
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != MOCK_VERSION_OF(nvmlUUID_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_UUID_TYPE_ASCII) {
        memcpy(text, uuid->value.str, NVML_DEVICE_UUID_ASCII_LEN);
        text[NVML_DEVICE_UUID_ASCII_LEN] = '\0';
    } else if (uuid->type == NVML_UUID_TYPE_BINARY) {
        char *at = text + strlen(text);
        for (size_t i = 0; i < NVML_DEVICE_UUID_BINARY_LEN; ++i)
            at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid->value.bytes[i]);
    } else {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return impl_nvmlDeviceGetHandleByUUID(text, device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    if (serial == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (any_lost() != NVML_SUCCESS)
        return NVML_ERROR_GPU_IS_LOST;
    for (unsigned int i = 0; i < mock_count(); ++i)
        if (text_is(&mock_gpu(mock_handle(i))->serial, serial))
            return hand_out("nvmlDeviceGetHandleBySerial", mock_handle(i), device);
    return NVML_ERROR_NOT_FOUND;
}
