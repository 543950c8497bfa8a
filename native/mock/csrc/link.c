/* NVLink, fabric, platform, C2C and the field values that say the same. */
#include "mock.h"

_Static_assert(sizeof(nvmlGpuFabricInfo_v2_t) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v3_t) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v4_t) == 548, "nvmlGpuFabricInfo_v4_t");
_Static_assert(sizeof(nvmlPlatformInfo_v2_t) == 44, "nvmlPlatformInfo_v2_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(NVML_NVLINK_MAX_LINKS <= MOCK_MAX_LINKS, "links");

/* INVALID_ARGUMENT beyond what the header knows, NOT_SUPPORTED beyond the last link of this board. */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned int number, const struct mock_link **link)
{
    if (number >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *link = &mock_gpu(device)->links[number];
    /* a GPU that MIG divides shows no NVLink: its instances have neither links nor peers */
    return (*link)->state < 0 || mock_gpu(device)->mig_current == 1 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    const struct mock_link *found;
    const nvmlReturn_t result = link_of(device, link, &found);
    if (isActive == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *isActive = found->state == 1 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    const struct mock_link *found;
    const nvmlReturn_t result = link_of(device, link, &found);
    if (result != NVML_SUCCESS)
        return result;
    MOCK_GIVE(version, found->version);
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                                nvmlNvLinkCapability_t capability, unsigned int *capResult)
{
    const struct mock_link *found;
    const nvmlReturn_t result = link_of(device, link, &found);
    if (capResult == NULL || (unsigned int)capability >= NVML_NVLINK_CAP_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *capResult = capability != NVML_NVLINK_CAP_SLI_BRIDGE && (found->state == 1 || capability == NVML_NVLINK_CAP_VALID);
    return result;
}

/* A link that is down has no far end: NVML gives NOT_SUPPORTED for it, as on a board whose bridge is missing. */
static nvmlReturn_t far_end(nvmlDevice_t device, unsigned int number, const struct mock_link **link)
{
    const nvmlReturn_t result = link_of(device, number, link);
    if (result == NVML_SUCCESS && ((*link)->state != 1 || (*link)->remote_bus < 0))
        return NVML_ERROR_NOT_SUPPORTED;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    const struct mock_link *found;
    const nvmlReturn_t result = far_end(device, link, &found);
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    mock_pci_info(pci, found->remote_domain, found->remote_bus, found->remote_device, found->remote_pci_id,
                  found->remote_subsystem_id);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = impl_nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &full);
    if (result == NVML_SUCCESS)
        memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                      nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
    const struct mock_link *found;
    const nvmlReturn_t result = far_end(device, link, &found);
    if (result != NVML_SUCCESS)
        return result;
    MOCK_GIVE(pNvLinkDeviceType, found->remote_type);
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                                  nvmlNvLinkErrorCounter_t counter, unsigned long long *counterValue)
{
    const struct mock_link *found;
    const nvmlReturn_t result = link_of(device, link, &found);
    if ((unsigned int)counter >= NVML_NVLINK_ERROR_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    MOCK_GIVE(counterValue, 0);
}

nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (gpuFabricInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->fabric_state < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memcpy(gpuFabricInfo->clusterUuid, gpu->fabric_cluster, sizeof(gpu->fabric_cluster));
    gpuFabricInfo->status = (nvmlReturn_t)gpu->fabric_status;
    gpuFabricInfo->cliqueId = (unsigned int)gpu->fabric_clique;
    gpuFabricInfo->state = (nvmlGpuFabricState_t)gpu->fabric_state;
    return NVML_SUCCESS;
}

/* v2 is a prefix of v3, health summary apart. */
nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (gpuFabricInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const bool third = gpuFabricInfo->version == MOCK_VERSION_OF(nvmlGpuFabricInfo_v3_t, 3);
    if ((!third && gpuFabricInfo->version != MOCK_VERSION_OF(nvmlGpuFabricInfo_v2_t, 2)) ||
        mock_refuses("nvmlDeviceGetGpuFabricInfoV", device, third ? 3 : 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu->fabric_state < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlGpuFabricInfo_v2_t *info = (nvmlGpuFabricInfo_v2_t *)gpuFabricInfo;
    memcpy(info->clusterUuid, gpu->fabric_cluster, sizeof(gpu->fabric_cluster));
    info->status = (nvmlReturn_t)gpu->fabric_status;
    info->cliqueId = (unsigned int)gpu->fabric_clique;
    info->state = (nvmlGpuFabricState_t)gpu->fabric_state;
    info->healthMask = (unsigned int)gpu->fabric_health_mask;
    if (third)
        gpuFabricInfo->healthSummary = (unsigned char)gpu->fabric_health_summary;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *gpuFabricInfo)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (gpuFabricInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->fabric_state < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(gpuFabricInfo, 0, sizeof(*gpuFabricInfo));
    memcpy(gpuFabricInfo->clusterUuid, gpu->fabric_cluster, sizeof(gpu->fabric_cluster));
    gpuFabricInfo->status = (nvmlReturn_t)gpu->fabric_status;
    gpuFabricInfo->state = (nvmlGpuFabricState_t)gpu->fabric_state;
    gpuFabricInfo->healthMask = (unsigned int)gpu->fabric_health_mask;
    gpuFabricInfo->healthSummary = (unsigned char)gpu->fabric_health_summary;
    gpuFabricInfo->numCliques = 1;
    gpuFabricInfo->cliques[0].id = (unsigned int)gpu->fabric_clique;
    return NVML_SUCCESS;
}

/* v1 and v2 have one layout under two vocabularies. */
_Static_assert(sizeof(nvmlPlatformInfo_v1_t) == sizeof(nvmlPlatformInfo_v2_t), "nvmlPlatformInfo_v1_t");

nvmlReturn_t impl_nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *platformInfo)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (platformInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (platformInfo->version != MOCK_VERSION_OF(nvmlPlatformInfo_v2_t, 2) &&
        platformInfo->version != MOCK_VERSION_OF(nvmlPlatformInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu->platform_host < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memcpy(platformInfo->ibGuid, gpu->platform_guid, sizeof(gpu->platform_guid));
    memcpy(platformInfo->chassisSerialNumber, gpu->platform_chassis, sizeof(gpu->platform_chassis));
    platformInfo->slotNumber = (unsigned char)gpu->platform_slot;
    platformInfo->trayIndex = (unsigned char)gpu->platform_tray;
    platformInfo->hostId = (unsigned char)gpu->platform_host;
    platformInfo->peerType = (unsigned char)gpu->platform_peer_type;
    platformInfo->moduleId = (unsigned char)gpu->module_id;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *c2cModeInfo)
{
    if (c2cModeInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(&c2cModeInfo->isC2cEnabled, mock_gpu(device)->c2c);
}

static int64_t count_links(const struct mock_gpu *gpu)
{
    int64_t count = 0;
    for (unsigned int i = 0; i < MOCK_MAX_LINKS; ++i)
        count += gpu->links[i].state >= 0;
    return count;
}

static int64_t common_speed(const struct mock_gpu *gpu)
{
    for (unsigned int i = 0; i < MOCK_MAX_LINKS; ++i)
        if (gpu->links[i].state == 1)
            return gpu->links[i].speed_mbps;
    return -1;
}

/* The value of a field, -1 where this board has none. */
static int64_t field_value(const struct mock_gpu *gpu, unsigned int field, unsigned int scope)
{
    static const struct mock_link none = {.state = -1, .version = -1, .speed_mbps = -1, .remote_link = -1};
    const struct mock_link *link = scope < MOCK_MAX_LINKS && gpu->mig_current != 1 ? &gpu->links[scope] : &none;
    switch (field) {
    case NVML_FI_DEV_ECC_CURRENT:
        return gpu->ecc_current;
    case NVML_FI_DEV_ECC_PENDING:
        return gpu->ecc_pending;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        return count_links(gpu);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        return common_speed(gpu);
    case NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID:
        return link->state == 1 ? link->remote_link : -1;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        return link->state == 1 ? link->speed_mbps : -1;
    case NVML_FI_DEV_NVLINK_GET_STATE:
        return link->state;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        return link->state < 0 ? -1 : link->version;
    case NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
        return gpu->mig_current < 0 ? -1 : gpu->mig_query;
    case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
        return gpu->mig_current < 0 ? -1 : gpu->mig_reset != 1;
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        return gpu->recovery_action;
    default:
        return -1;
    }
}

nvmlReturn_t impl_nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (values == NULL || valuesCount <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < valuesCount; ++i) {
        const int64_t value = field_value(gpu, values[i].fieldId, values[i].scopeId);
        values[i].timestamp = 0;
        values[i].latencyUsec = 0;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].nvmlReturn = value < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
        if (value >= 0)
            values[i].value.uiVal = (unsigned int)value;
    }
    return NVML_SUCCESS;
}
