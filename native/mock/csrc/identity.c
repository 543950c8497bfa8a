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
void mock_pci_info(const struct mock_gpu *gpu, nvmlPciInfo_t *pci)
{
    char text[40];
    memset(pci, 0, sizeof(*pci));
    pci->domain = (unsigned int)gpu->pci_domain;
    pci->bus = (unsigned int)gpu->pci_bus;
    pci->device = (unsigned int)gpu->pci_device;
    pci->pciDeviceId = (unsigned int)gpu->pci_device_id;
    pci->pciSubSystemId = (unsigned int)gpu->pci_subsystem_id;
    snprintf(text, sizeof(text), "%04X:%02X:%02X.0", pci->domain & 0xFFFFU, pci->bus & 0xFFU, pci->device & 0x1FU);
    memcpy(pci->busIdLegacy, text, strlen(text));
    snprintf(text, sizeof(text), "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xFFU, pci->device & 0x1FU);
    memcpy(pci->busId, text, strlen(text));
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    mock_pci_info(mock_gpu(device), pci);
    return NVML_SUCCESS;
}

/* The structs of v1 and v2 end before busId and pciSubSystemId: only what those callers have room for is written. */
static nvmlReturn_t old_pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t room)
{
    nvmlPciInfo_t full;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    mock_pci_info(mock_gpu(device), &full);
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
    mock_pci_info(gpu, &plain);
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
