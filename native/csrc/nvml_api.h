/*
 * What the parts of the door share, and nobody else sees: the functions that are looked up, the context, and the way
 * a call is made. The part that the world sees is in nvml_door.h and its companions.
 */
#ifndef GPUDRA_NVML_API_H
#define GPUDRA_NVML_API_H

#include "nvml_door.h"

#include <string.h>

#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#error "build with -DNVML_NO_UNVERSIONED_FUNC_DEFS: otherwise nvml.h renames the functions that are looked up by name"
#endif
#include "vendor/nvml.h"

#define FUNCTIONS(X) \
    X(nvmlInitWithFlags) \
    X(nvmlInit_v2) \
    X(nvmlShutdown) \
    X(nvmlSystemGetDriverVersion) \
    X(nvmlSystemGetNVMLVersion) \
    X(nvmlSystemGetCudaDriverVersion_v2) \
    X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetCount) \
    X(nvmlDeviceGetHandleByIndex_v2) \
    X(nvmlDeviceGetHandleByIndex) \
    X(nvmlDeviceGetHandleByPciBusId_v2) \
    X(nvmlDeviceGetHandleByPciBusId) \
    X(nvmlDeviceGetPciInfo_v3) \
    X(nvmlDeviceGetPciInfo_v2) \
    X(nvmlDeviceGetPciInfo) \
    X(nvmlDeviceGetIndex) \
    X(nvmlDeviceGetUUID) \
    X(nvmlDeviceGetName) \
    X(nvmlDeviceGetBrand) \
    X(nvmlDeviceGetArchitecture) \
    X(nvmlDeviceGetCudaComputeCapability) \
    X(nvmlDeviceGetSerial) \
    X(nvmlDeviceGetBoardPartNumber) \
    X(nvmlDeviceGetVbiosVersion) \
    X(nvmlDeviceGetMinorNumber) \
    X(nvmlDeviceGetModuleId) \
    X(nvmlDeviceGetMemoryInfo_v2) \
    X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetBAR1MemoryInfo) \
    X(nvmlDeviceGetAddressingMode) \
    X(nvmlDeviceGetEccMode) \
    X(nvmlDeviceGetMigMode) \
    X(nvmlDeviceGetComputeMode) \
    X(nvmlDeviceGetPersistenceMode) \
    X(nvmlDeviceGetVirtualizationMode) \
    X(nvmlDeviceGetMaxPcieLinkGeneration) \
    X(nvmlDeviceGetMaxPcieLinkWidth) \
    X(nvmlDeviceGetNumaNodeId) \
    X(nvmlDeviceGetNvLinkState) \
    X(nvmlDeviceGetNvLinkVersion) \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2) \
    X(nvmlDeviceGetNvLinkRemotePciInfo) \
    X(nvmlDeviceGetNvLinkRemoteDeviceType) \
    X(nvmlDeviceGetGpuFabricInfoV) \
    X(nvmlDeviceGetGpuFabricInfo) \
    X(nvmlDeviceGetGpuInstanceProfileInfoV) \
    X(nvmlDeviceGetGpuInstanceProfileInfo) \
    X(nvmlDeviceGetGpuInstancePossiblePlacements_v2) \
    X(nvmlDeviceGetGpuInstanceRemainingCapacity) \
    X(nvmlDeviceGetGpuInstances) \
    X(nvmlDeviceGetGpuInstanceById) \
    X(nvmlGpuInstanceGetInfo) \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfoV) \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfo) \
    X(nvmlGpuInstanceGetComputeInstances) \
    X(nvmlGpuInstanceGetComputeInstanceById) \
    X(nvmlComputeInstanceGetInfo_v2) \
    X(nvmlDeviceGetMaxMigDeviceCount) \
    X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceGetGpuInstanceId) \
    X(nvmlDeviceGetComputeInstanceId) \
    X(nvmlDeviceGetAttributes_v2) \
    X(nvmlDeviceSetMigMode) \
    X(nvmlDeviceCreateGpuInstance) \
    X(nvmlDeviceCreateGpuInstanceWithPlacement) \
    X(nvmlGpuInstanceDestroy) \
    X(nvmlGpuInstanceCreateComputeInstance) \
    X(nvmlComputeInstanceDestroy) \
    X(nvmlDeviceSetComputeMode) \
    X(nvmlDeviceSetPersistenceMode) \
    X(nvmlEventSetCreate) \
    X(nvmlEventSetFree) \
    X(nvmlEventSetWait_v2) \
    X(nvmlDeviceGetSupportedEventTypes) \
    X(nvmlDeviceRegisterEvents) \
    X(nvmlDeviceGetTotalEccErrors) \
    X(nvmlDeviceGetRemappedRows) \
    X(nvmlDeviceGetRetiredPagesPendingStatus) \
    X(nvmlDeviceGetRetiredPages) \
    X(nvmlDeviceGetRepairStatus) \
    X(nvmlDeviceGetFieldValues) \
    X(nvmlDeviceGetCurrentClocksEventReasons) \
    X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetTemperatureV) \
    X(nvmlDeviceGetTemperature) \
    X(nvmlDeviceGetUtilizationRates) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetTopologyCommonAncestor) \
    X(nvmlDeviceGetP2PStatus) \
    X(nvmlDeviceGetCpuAffinity) \
    X(nvmlDeviceGetMemoryAffinity)

/* Pointers typed by the header's own prototypes. Naming a deprecated function there is meant: old drivers need it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
typedef struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} door_api;
#pragma GCC diagnostic pop

struct door {
    void *library;
    door_progress *progress;
    door_api api;
    int gpu;          /* that calls are about now; -1: none */
    int initialised;
    const char *last; /* the call made last, or looked for in vain */
    nvmlEventSet_t events;
};

void door_show(door *door, const char *call);
int door_returned(door *door, int code);

#define CALL(door, function, ...)                                                                   \
    ((door)->last = #function,                                                                      \
     (door)->api.function == NULL                                                                   \
         ? (int)NVML_ERROR_FUNCTION_NOT_FOUND                                                       \
         : (door_show((door), #function), door_returned((door), (int)(door)->api.function(__VA_ARGS__))))

/* Whether a versioned call says "not in this form": the symbol or the struct version is newer than the driver. */
static inline int door_too_new(int code)
{
    return code == NVML_ERROR_FUNCTION_NOT_FOUND || code == NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

int door_read_pci(door *door, nvmlDevice_t device, door_pci *out);
/* The handle of gpus[position], by its address or else its index; calls are about that GPU from here on. */
int door_reach(door *door, const door_gpu *gpus, int position, nvmlDevice_t *device);

#endif
