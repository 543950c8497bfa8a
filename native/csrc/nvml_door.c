/* See nvml_door.h. The fallbacks from newer calls to older ones are all here; the rules are those of nvml.h. */
#include "nvml_api.h"
#include "nvml_events.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* The library writes into these: a header whose layout is not the documented one must not compile. */
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlBAR1Memory_t) == 24, "nvmlBAR1Memory_t");
_Static_assert(sizeof(nvmlDeviceAddressingMode_v1_t) == 8, "nvmlDeviceAddressingMode_v1_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_t) == 28, "nvmlGpuFabricInfo_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v2_t) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v3_t) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(nvmlReturn_t) == sizeof(int), "nvmlReturn_t");
_Static_assert(sizeof(((nvmlPciInfo_t *)0)->busId) == DOOR_ADDRESS, "DOOR_ADDRESS");
_Static_assert(NVML_NVLINK_MAX_LINKS == DOOR_LINKS, "DOOR_LINKS");
_Static_assert(NVML_GPU_FABRIC_UUID_LEN == DOOR_FABRIC_UUID, "DOOR_FABRIC_UUID");

/* A sequence lock of one writer: odd while `call` and `gpu` change. A reader that sees either as it is written here also
   sees the odd number before it (release and acquire), so it asks again. Twice for each call: no locked instruction. */
void door_show(door *door, const char *call)
{
    door_progress *progress = door->progress;
    const unsigned int sequence = atomic_load_explicit(&progress->sequence, memory_order_relaxed);
    atomic_store_explicit(&progress->sequence, sequence + 1, memory_order_release);
    atomic_store_explicit(&progress->call, call, memory_order_release);
    atomic_store_explicit(&progress->gpu, door->gpu, memory_order_release);
    atomic_store_explicit(&progress->sequence, sequence + 2, memory_order_release);
}

int door_returned(door *door, int code)
{
    door_show(door, NULL);
    return code;
}

const char *door_last(const door *door)
{
    return door->last != NULL ? door->last : "dlopen";
}

void door_look(door_progress *progress, door_look_result *result)
{
    unsigned int before;
    do {
        before = atomic_load_explicit(&progress->sequence, memory_order_acquire);
        result->call = atomic_load_explicit(&progress->call, memory_order_acquire);
        result->gpu = atomic_load_explicit(&progress->gpu, memory_order_acquire);
        result->sequence = atomic_load_explicit(&progress->sequence, memory_order_acquire);
    } while (before != result->sequence || (before & 1U) != 0);
}

static int initialise(door *door)
{
    int code = CALL(door, nvmlInitWithFlags, NVML_INIT_FLAG_NO_GPUS);
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND) {
        code = CALL(door, nvmlInit_v2);
    }
    door->initialised = code == NVML_SUCCESS;
    return code;
}

int door_open(door **out, const char *path, door_progress *progress, char *error, size_t error_size)
{
    *out = NULL;
    error[0] = '\0';
    door *opened = calloc(1, sizeof(*opened));
    if (opened == NULL) {
        return NVML_ERROR_MEMORY;
    }
    opened->progress = progress;
    opened->gpu = -1;
    door_show(opened, "dlopen");
    opened->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    door_show(opened, NULL);
    if (opened->library == NULL) {
        const char *words = dlerror();
        snprintf(error, error_size, "%s", words != NULL ? words : "dlopen failed and did not say why");
        free(opened);
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    /* POSIX's way to turn an object pointer into a function pointer without a cast that ISO C forbids. */
#define LOOK_UP(name) *(void **)(&opened->api.name) = dlsym(opened->library, #name);
    FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    int code = initialise(opened);
    if (code != NVML_SUCCESS) {
        door_close(opened);
        return code;
    }
    *out = opened;
    return NVML_SUCCESS;
}

void door_close(door *door)
{
    if (door == NULL) {
        return;
    }
    door_events_close(door);
    if (door->initialised) {
        (void)CALL(door, nvmlShutdown);
    }
    dlclose(door->library);
    free(door);
}

int door_has_symbol(const door *door, const char *name)
{
    return dlsym(door->library, name) != NULL;
}

int door_count(door *door, unsigned int *count)
{
    int code = CALL(door, nvmlDeviceGetCount_v2, count);
    return code != NVML_ERROR_FUNCTION_NOT_FOUND ? code : CALL(door, nvmlDeviceGetCount, count);
}

void door_read_node(door *door, door_node *node)
{
    door->gpu = -1;
    node->driver_version_code = CALL(door, nvmlSystemGetDriverVersion, node->driver_version, DOOR_TEXT);
    node->nvml_version_code = CALL(door, nvmlSystemGetNVMLVersion, node->nvml_version, DOOR_TEXT);
    node->cuda_driver_version_code = CALL(door, nvmlSystemGetCudaDriverVersion_v2, &node->cuda_driver_version);
}

static int handle_of(door *door, const door_gpu *gpu, nvmlDevice_t *device)
{
    int code;
    if (gpu->address[0] == '\0') {
        code = CALL(door, nvmlDeviceGetHandleByIndex_v2, gpu->index, device);
        return code != NVML_ERROR_FUNCTION_NOT_FOUND ? code
                                                     : CALL(door, nvmlDeviceGetHandleByIndex, gpu->index, device);
    }
    code = CALL(door, nvmlDeviceGetHandleByPciBusId_v2, gpu->address, device);
    return code != NVML_ERROR_FUNCTION_NOT_FOUND ? code
                                                 : CALL(door, nvmlDeviceGetHandleByPciBusId, gpu->address, device);
}

int door_reach(door *door, const door_gpu *gpus, int position, nvmlDevice_t *device)
{
    door->gpu = gpus[position].address[0] == '\0' ? -1 : position;
    return handle_of(door, &gpus[position], device);
}

static void take_pci(door_pci *out, const nvmlPciInfo_t *info)
{
    memcpy(out->bus_id, info->busId, sizeof(out->bus_id));
    out->domain = info->domain;
    out->bus = info->bus;
    out->device = info->device;
    out->device_id = info->pciDeviceId;
    out->subsystem_id = info->pciSubSystemId;
}

int door_read_pci(door *door, nvmlDevice_t device, door_pci *out)
{
    nvmlPciInfo_t info;
    memset(&info, 0, sizeof(info));
    int code = CALL(door, nvmlDeviceGetPciInfo_v3, device, &info);
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND) {
        code = CALL(door, nvmlDeviceGetPciInfo_v2, device, &info);
    }
    if (code == NVML_ERROR_FUNCTION_NOT_FOUND) {
        code = CALL(door, nvmlDeviceGetPciInfo, device, &info);
    }
    if (code == NVML_SUCCESS) {
        take_pci(out, &info);
    }
    return code;
}

static void read_identity(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    int *codes = gpu->codes;
    nvmlBrandType_t brand = NVML_BRAND_UNKNOWN;
    codes[DOOR_UUID] = CALL(door, nvmlDeviceGetUUID, device, gpu->uuid, DOOR_TEXT);
    codes[DOOR_NAME] = CALL(door, nvmlDeviceGetName, device, gpu->name, DOOR_TEXT);
    codes[DOOR_BRAND] = CALL(door, nvmlDeviceGetBrand, device, &brand);
    gpu->brand = (int)brand;
    codes[DOOR_ARCHITECTURE] = CALL(door, nvmlDeviceGetArchitecture, device, &gpu->architecture);
    codes[DOOR_CUDA_COMPUTE_CAPABILITY] =
        CALL(door, nvmlDeviceGetCudaComputeCapability, device, &gpu->cuda_major, &gpu->cuda_minor);
    codes[DOOR_SERIAL] = CALL(door, nvmlDeviceGetSerial, device, gpu->serial, DOOR_TEXT);
    codes[DOOR_BOARD_PART_NUMBER] = CALL(door, nvmlDeviceGetBoardPartNumber, device, gpu->board_part_number, DOOR_TEXT);
    codes[DOOR_VBIOS_VERSION] = CALL(door, nvmlDeviceGetVbiosVersion, device, gpu->vbios_version, DOOR_TEXT);
    codes[DOOR_MINOR_NUMBER] = CALL(door, nvmlDeviceGetMinorNumber, device, &gpu->minor_number);
    codes[DOOR_MODULE_ID] = CALL(door, nvmlDeviceGetModuleId, device, &gpu->module_id);
}

static void read_memory(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    nvmlMemory_v2_t second;
    memset(&second, 0, sizeof(second));
    second.version = nvmlMemory_v2;
    int code = CALL(door, nvmlDeviceGetMemoryInfo_v2, device, &second);
    gpu->codes[DOOR_MEMORY_RESERVED] = code;
    gpu->memory_total = second.total;
    gpu->memory_reserved = second.reserved;
    if (door_too_new(code) || code == NVML_ERROR_NOT_SUPPORTED) {
        nvmlMemory_t first;
        memset(&first, 0, sizeof(first));
        code = CALL(door, nvmlDeviceGetMemoryInfo, device, &first);
        gpu->memory_total = first.total;
    }
    gpu->codes[DOOR_MEMORY_TOTAL] = code;
    nvmlBAR1Memory_t bar1;
    memset(&bar1, 0, sizeof(bar1));
    gpu->codes[DOOR_BAR1_TOTAL] = CALL(door, nvmlDeviceGetBAR1MemoryInfo, device, &bar1);
    gpu->bar1_total = bar1.bar1Total;
}

static void read_modes(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    int *codes = gpu->codes;
    nvmlDeviceAddressingMode_v1_t addressing = {.version = nvmlDeviceAddressingMode_v1, .value = 0};
    nvmlEnableState_t ecc_current = NVML_FEATURE_DISABLED;
    nvmlEnableState_t ecc_pending = NVML_FEATURE_DISABLED;
    nvmlEnableState_t persistence = NVML_FEATURE_DISABLED;
    nvmlComputeMode_t compute = NVML_COMPUTEMODE_DEFAULT;
    nvmlGpuVirtualizationMode_t virtualization = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    codes[DOOR_ADDRESSING_MODE] = CALL(door, nvmlDeviceGetAddressingMode, device, &addressing);
    codes[DOOR_ECC_MODE] = CALL(door, nvmlDeviceGetEccMode, device, &ecc_current, &ecc_pending);
    codes[DOOR_MIG_MODE] = CALL(door, nvmlDeviceGetMigMode, device, &gpu->mig_current, &gpu->mig_pending);
    codes[DOOR_COMPUTE_MODE] = CALL(door, nvmlDeviceGetComputeMode, device, &compute);
    codes[DOOR_PERSISTENCE_MODE] = CALL(door, nvmlDeviceGetPersistenceMode, device, &persistence);
    codes[DOOR_VIRTUALIZATION_MODE] = CALL(door, nvmlDeviceGetVirtualizationMode, device, &virtualization);
    gpu->addressing_mode = addressing.value;
    gpu->ecc_current = (int)ecc_current;
    gpu->ecc_pending = (int)ecc_pending;
    gpu->compute_mode = (int)compute;
    gpu->persistence_mode = (int)persistence;
    gpu->virtualization_mode = (int)virtualization;
}

static void read_place(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    gpu->codes[DOOR_PCIE_LINK_GENERATION] =
        CALL(door, nvmlDeviceGetMaxPcieLinkGeneration, device, &gpu->pcie_link_generation);
    gpu->codes[DOOR_PCIE_LINK_WIDTH] = CALL(door, nvmlDeviceGetMaxPcieLinkWidth, device, &gpu->pcie_link_width);
    gpu->codes[DOOR_MEMORY_NUMA_NODE] = CALL(door, nvmlDeviceGetNumaNodeId, device, &gpu->memory_numa_node);
}

static void read_far_end(door *door, nvmlDevice_t device, unsigned int index, door_link *link)
{
    nvmlPciInfo_t info;
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    memset(&info, 0, sizeof(info));
    link->remote_pci_code = CALL(door, nvmlDeviceGetNvLinkRemotePciInfo_v2, device, index, &info);
    if (link->remote_pci_code == NVML_ERROR_FUNCTION_NOT_FOUND) {
        link->remote_pci_code = CALL(door, nvmlDeviceGetNvLinkRemotePciInfo, device, index, &info);
    }
    take_pci(&link->remote, &info);
    link->remote_type_code = CALL(door, nvmlDeviceGetNvLinkRemoteDeviceType, device, index, &type);
    link->remote_type = (int)type;
}

/* NOT_SUPPORTED is a hole (boards with fewer links than the chip), INVALID_ARGUMENT is the end; any other failure
   makes the whole list unknown, because a list that is cut short would look like fewer links. */
static void read_links(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    int code = NVML_SUCCESS;
    int found = 0;
    for (unsigned int index = 0; index < DOOR_LINKS; index++) {
        door_link *link = &gpu->links[index];
        nvmlEnableState_t active = NVML_FEATURE_DISABLED;
        link->state_code = CALL(door, nvmlDeviceGetNvLinkState, device, index, &active);
        gpu->link_count = index + 1;
        if (link->state_code == NVML_ERROR_NOT_SUPPORTED) {
            code = code == NVML_SUCCESS ? link->state_code : code;
            continue;
        }
        if (link->state_code != NVML_SUCCESS) {
            if (link->state_code != NVML_ERROR_INVALID_ARGUMENT || index == 0) {
                code = link->state_code;
                found = 0;
            }
            break;
        }
        found = 1;
        link->active = (int)active;
        link->version_code = CALL(door, nvmlDeviceGetNvLinkVersion, device, index, &link->version);
        if (link->active != 0) {
            read_far_end(door, device, index, link);
        }
    }
    gpu->codes[DOOR_NVLINKS] = found ? NVML_SUCCESS : code;
}

static void read_fabric(door *door, nvmlDevice_t device, door_gpu *gpu)
{
    nvmlGpuFabricInfo_v3_t info;
    memset(&info, 0, sizeof(info));
    info.version = nvmlGpuFabricInfo_v3;
    int code = CALL(door, nvmlDeviceGetGpuFabricInfoV, device, &info);
    if (code == NVML_ERROR_ARGUMENT_VERSION_MISMATCH) {
        /* v2 is v3 without its last field, so a v2 answer fits where v3 was asked. */
        memset(&info, 0, sizeof(info));
        info.version = nvmlGpuFabricInfo_v2;
        code = CALL(door, nvmlDeviceGetGpuFabricInfoV, device, &info);
    }
    if (door_too_new(code)) {
        nvmlGpuFabricInfo_t first;
        memset(&first, 0, sizeof(first));
        memset(&info, 0, sizeof(info));
        code = CALL(door, nvmlDeviceGetGpuFabricInfo, device, &first);
        memcpy(info.clusterUuid, first.clusterUuid, sizeof(info.clusterUuid));
        info.status = first.status;
        info.cliqueId = first.cliqueId;
        info.state = first.state;
    }
    gpu->codes[DOOR_FABRIC] = code;
    memcpy(gpu->fabric_uuid, info.clusterUuid, sizeof(gpu->fabric_uuid));
    gpu->fabric_status = (int)info.status;
    gpu->fabric_clique = info.cliqueId;
    gpu->fabric_state = info.state;
    gpu->fabric_health_mask = info.healthMask;
}

/* The handle and the PCI address. 0: there is no handle, and nothing more to ask. */
static int locate(door *door, door_gpu *gpu, int position, nvmlDevice_t *device)
{
    int by_index = gpu->address[0] == '\0';
    gpu->codes[DOOR_HANDLE] = door_reach(door, gpu - position, position, device);
    if (gpu->codes[DOOR_HANDLE] != NVML_SUCCESS) {
        return 0;
    }
    gpu->codes[DOOR_PCI] = door_read_pci(door, *device, &gpu->pci);
    if (by_index && gpu->codes[DOOR_PCI] == NVML_SUCCESS) {
        memcpy(gpu->address, gpu->pci.bus_id, sizeof(gpu->address) - 1);
        door->gpu = position;
    }
    return 1;
}

void door_locate(door *door, door_gpu *gpus, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        nvmlDevice_t device = NULL;
        (void)locate(door, &gpus[i], (int)i, &device);
    }
    door->gpu = -1;
}

void door_read(door *door, door_gpu *gpus, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        door_gpu *gpu = &gpus[i];
        nvmlDevice_t device = NULL;
        int by_index = gpu->address[0] == '\0';
        if (!locate(door, gpu, (int)i, &device)) {
            continue;
        }
        if (!by_index) {
            gpu->codes[DOOR_INDEX] = CALL(door, nvmlDeviceGetIndex, device, &gpu->index);
        }
        read_identity(door, device, gpu);
        read_memory(door, device, gpu);
        read_modes(door, device, gpu);
        read_place(door, device, gpu);
        read_links(door, device, gpu);
        read_fabric(door, device, gpu);
    }
    door->gpu = -1;
}
