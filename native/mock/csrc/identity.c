/* Who a GPU is: names, ids, PCI identity. */
#include <stdio.h>

#include "mock.h"

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlPciInfoExt_v1_t) == 64, "nvmlPciInfoExt_v1_t");

#define TEXT_GETTER(function, field)                                                         \
    nvmlReturn_t impl_##function(nvmlDevice_t device, char *out, unsigned int length)        \
    {                                                                                        \
        return mock_text(&mock_gpu(device)->field, out, length);                             \
    }

TEXT_GETTER(nvmlDeviceGetSerial, serial)
TEXT_GETTER(nvmlDeviceGetBoardPartNumber, board_part_number)
TEXT_GETTER(nvmlDeviceGetVbiosVersion, vbios_version)
TEXT_GETTER(nvmlDeviceGetInforomImageVersion, inforom_image_version)

static nvmlReturn_t give_string(const char *text, char *out, unsigned int length)
{
    const size_t size = strlen(text) + 1;
    if (out == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, size);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct mock_instance mig;
    char text[MOCK_UUID_ROOM];
    if (!mock_instance(device, MOCK_MIG_DEVICE, &mig))
        return mock_text(&mock_gpu(device)->uuid, uuid, length);
    mock_mig_uuid(mig.gpu, mig.gi, mig.ci, text);
    return give_string(text, uuid, length);
}

/* "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb" */
nvmlReturn_t impl_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct mock_instance mig;
    char text[2 * MOCK_TEXT_BYTES + 16], compute[8] = "";
    if (!mock_instance(device, MOCK_MIG_DEVICE, &mig))
        return mock_text(&mock_gpu(device)->name, name, length);
    const struct mock_text *gpu = &mig.gpu->name, *profile = &mig.profile->name;
    if (mig.ci_record->size != mig.profile->slices)
        snprintf(compute, sizeof(compute), "%uc.", (unsigned int)mig.ci_record->size & 0xFFU);
    snprintf(text, sizeof(text), "%.*s MIG %s%.*s", gpu->length > 0 ? gpu->length : 0, gpu->bytes, compute,
             profile->length > 0 ? profile->length : 0, profile->bytes);
    return give_string(text, name, length);
}

nvmlReturn_t impl_nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    return mock_text(&mock_gpu(device)->gsp_firmware_version, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

#define NUMBER_GETTER(function, type, field)                                                 \
    nvmlReturn_t impl_##function(nvmlDevice_t device, type *out)                             \
    {                                                                                        \
        MOCK_GIVE(out, mock_gpu(device)->field);                                             \
    }

NUMBER_GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
NUMBER_GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
NUMBER_GETTER(nvmlDeviceGetMinorNumber, unsigned int, minor)
NUMBER_GETTER(nvmlDeviceGetModuleId, unsigned int, module_id)
NUMBER_GETTER(nvmlDeviceGetBoardId, unsigned int, board_id)

nvmlReturn_t impl_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct mock_instance mig;
    if (mock_instance(device, MOCK_MIG_DEVICE, &mig))
        MOCK_GIVE(index, mig.ci_record->mig_index);
    if (index == NULL || !mock_index(device, index))
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *multiGpuBool)
{
    (void)device;
    MOCK_GIVE(multiGpuBool, 0);
}

nvmlReturn_t impl_nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *onSameBoard)
{
    if (mock_gpu(device2) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(onSameBoard, device1 == device2);
}

nvmlReturn_t impl_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (major == NULL || minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
    return NVML_SUCCESS;
}

/* The legacy id has room for four domain digits and truncates a wider one, as the real library does. */
static char *put_hex(char *out, unsigned int value, int digits)
{
    for (int at = digits - 1; at >= 0; --at, value >>= 4U)
        out[at] = "0123456789ABCDEF"[value & 0xFU];
    return out + digits;
}

/* "0000001B:00:00.0". By hand: this is called for every link of every GPU, and a printf costs more than all else here. */
static void put_bus_id(char *out, unsigned int digits, const nvmlPciInfo_t *pci)
{
    out = put_hex(out, pci->domain, (int)digits);
    *out++ = ':';
    out = put_hex(out, pci->bus, 2);
    *out++ = ':';
    out = put_hex(out, pci->device & 0x1FU, 2);
    memcpy(out, ".0", sizeof(".0"));
}

_Static_assert(sizeof(((nvmlPciInfo_t *)0)->busIdLegacy) >= sizeof("0000:00:00.0"), "busIdLegacy");
_Static_assert(sizeof(((nvmlPciInfo_t *)0)->busId) >= sizeof("00000000:00:00.0"), "busId");

void mock_pci_info(nvmlPciInfo_t *pci, int64_t domain, int64_t bus, int64_t device, int64_t id, int64_t subsystem)
{
    memset(pci, 0, sizeof(*pci));
    pci->domain = (unsigned int)domain;
    pci->bus = (unsigned int)bus;
    pci->device = (unsigned int)device;
    pci->pciDeviceId = (unsigned int)id;
    pci->pciSubSystemId = (unsigned int)subsystem;
    put_bus_id(pci->busIdLegacy, 4, pci);
    put_bus_id(pci->busId, 8, pci);
}

static void pci_of(const struct mock_gpu *gpu, nvmlPciInfo_t *pci)
{
    mock_pci_info(pci, gpu->pci_domain, gpu->pci_bus, gpu->pci_device, gpu->pci_device_id, gpu->pci_subsystem_id);
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pci_of(mock_gpu(device), pci);
    return NVML_SUCCESS;
}

/* The structs of v1 and v2 end before busId and pciSubSystemId: only what those callers have room for is written. */
static nvmlReturn_t old_pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t room)
{
    nvmlPciInfo_t full;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pci_of(mock_gpu(device), &full);
    memcpy(pci, &full, room);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci_info(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci_info(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t impl_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    nvmlPciInfo_t plain;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (pci->version != MOCK_VERSION_OF(nvmlPciInfoExt_v1_t, 1) || mock_refuses("nvmlDeviceGetPciInfoExt", device, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci_of(gpu, &plain);
    pci->domain = plain.domain;
    pci->bus = plain.bus;
    pci->device = plain.device;
    pci->pciDeviceId = plain.pciDeviceId;
    pci->pciSubSystemId = plain.pciSubSystemId;
    pci->baseClass = (unsigned int)gpu->pci_base_class;
    pci->subClass = (unsigned int)gpu->pci_sub_class;
    memcpy(pci->busId, plain.busId, sizeof(pci->busId));
    return NVML_SUCCESS;
}
