/* nvidia-smi topo -m: GPUs from NVML, NICs from sysfs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

#define MAX_NICS 64

struct nic {
    char name[32];
    char path[PATH_MAX]; /* its folder below sys/devices, "/pci0000:15/..." */
    int numa;
};

static int read_numa(const char *folder)
{
    char path[PATH_MAX];
    int numa = -1;
    if ((size_t)snprintf(path, sizeof(path), "%s/numa_node", folder) >= sizeof(path))
        return -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &numa) != 1)
        numa = -1;
    fclose(file);
    return numa;
}

static bool locate(const char *link, char path[PATH_MAX], int *numa)
{
    char real[PATH_MAX];
    if (realpath(link, real) == NULL)
        return false;
    *numa = read_numa(real);
    const char *devices = strstr(real, "/devices/pci");
    if (devices == NULL)
        return false;
    snprintf(path, PATH_MAX, "%s", devices + strlen("/devices"));
    return true;
}

static int by_name(const void *one, const void *other)
{
    return strverscmp(((const struct nic *)one)->name, ((const struct nic *)other)->name);
}

static unsigned int find_nics(struct nic nics[MAX_NICS])
{
    char folder[PATH_MAX], link[PATH_MAX];
    unsigned int count = 0;
    if ((size_t)snprintf(folder, sizeof(folder), "%s/sys/class/infiniband", mock_root()) >= sizeof(folder))
        return 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL && count < MAX_NICS;) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(nics->name) ||
            (size_t)snprintf(link, sizeof(link), "%s/%s/device", folder, entry->d_name) >= sizeof(link))
            continue;
        snprintf(nics[count].name, sizeof(nics->name), "%.31s", entry->d_name);
        count += locate(link, nics[count].path, &nics[count].numa);
    }
    if (directory != NULL)
        closedir(directory);
    qsort(nics, count, sizeof(*nics), by_name);
    return count;
}

static unsigned int parts(const char *path)
{
    unsigned int count = 0;
    for (; *path != '\0'; ++path)
        count += *path == '/';
    return count;
}

/* Each switch is two bridges: one bridge below the last common port is the shared switch, more are further ones. */
static const char *class_of(const char *one, int numa, const char *other, int other_numa)
{
    size_t common = 0, at = 0;
    while (one[at] != '\0' && one[at] == other[at]) {
        ++at;
        if ((one[at] == '/' || one[at] == '\0') && (other[at] == '/' || other[at] == '\0'))
            common = at;
    }
    const char *root_end = strchr(one + 1, '/');
    if (root_end == NULL || common < (size_t)(root_end - one))
        return numa >= 0 && numa == other_numa ? "NODE" : "SYS";
    if (common == (size_t)(root_end - one))
        return "PHB";
    const unsigned int below = parts(one + common), other_below = parts(other + common);
    return (below > other_below ? below : other_below) <= 2 ? "PIX" : "PXB";
}

static const char *between_gpus(nvmlDevice_t one, nvmlDevice_t other, char room[TEXT_ROOM])
{
    nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
    nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
    nvmlPciInfo_t far, its;
    unsigned int links = 0;
    const bool linked = nvmlDeviceGetP2PStatus(one, other, NVML_P2P_CAPS_INDEX_NVLINK, &status) == NVML_SUCCESS &&
                        status == NVML_P2P_STATUS_OK && nvmlDeviceGetPciInfo_v3(other, &its) == NVML_SUCCESS;
    for (unsigned int link = 0; linked && link < NVML_NVLINK_MAX_LINKS; ++link) {
        nvmlEnableState_t active = NVML_FEATURE_DISABLED;
        nvmlIntNvLinkDeviceType_t kind = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        if (nvmlDeviceGetNvLinkState(one, link, &active) != NVML_SUCCESS || active != NVML_FEATURE_ENABLED)
            continue;
        /* a far end that NVML does not name is a switch in another chassis */
        const nvmlReturn_t known = nvmlDeviceGetNvLinkRemoteDeviceType(one, link, &kind);
        const bool direct = known == NVML_SUCCESS && kind == NVML_NVLINK_DEVICE_TYPE_GPU;
        links += !direct || (nvmlDeviceGetNvLinkRemotePciInfo_v2(one, link, &far) == NVML_SUCCESS &&
                             strcmp(far.busId, its.busId) == 0);
    }
    if (links > 0) {
        snprintf(room, TEXT_ROOM, "NV%u", links);
        return room;
    }
    if (nvmlDeviceGetTopologyCommonAncestor(one, other, &level) != NVML_SUCCESS)
        return "N/A";
    return level <= NVML_TOPOLOGY_SINGLE        ? "PIX"
           : level == NVML_TOPOLOGY_MULTIPLE    ? "PXB"
           : level == NVML_TOPOLOGY_HOSTBRIDGE  ? "PHB"
           : level == NVML_TOPOLOGY_NODE        ? "NODE"
                                                : "SYS";
}

static void print_set(const unsigned long *words, unsigned int count)
{
    bool first = true;
    for (unsigned int at = 0; at < count * 64; ++at) {
        unsigned int end = at;
        if ((words[at / 64] >> at % 64 & 1U) == 0)
            continue;
        while (end + 1 < count * 64 && (words[(end + 1) / 64] >> (end + 1) % 64 & 1U) != 0)
            ++end;
        printf(end > at ? "%s%u-%u" : "%s%u", first ? "" : ",", at, end);
        first = false;
        at = end;
    }
    if (first)
        printf("N/A");
}

static void affinity(nvmlDevice_t device)
{
    unsigned long cpus[MOCK_CPU_WORDS] = {0}, nodes[MOCK_NODE_WORDS] = {0};
    unsigned int own = 0;
    if (nvmlDeviceGetCpuAffinity(device, MOCK_CPU_WORDS, cpus) != NVML_SUCCESS)
        memset(cpus, 0, sizeof(cpus));
    if (nvmlDeviceGetMemoryAffinity(device, MOCK_NODE_WORDS, nodes, NVML_AFFINITY_SCOPE_NODE) != NVML_SUCCESS)
        memset(nodes, 0, sizeof(nodes));
    printf("\t");
    print_set(cpus, MOCK_CPU_WORDS);
    printf("\t");
    print_set(nodes, MOCK_NODE_WORDS);
    if (nvmlDeviceGetNumaNodeId(device, &own) == NVML_SUCCESS)
        printf("\t\t%u", own);
    else
        printf("\t\tN/A");
}

struct matrix {
    unsigned int gpus, nics;
    nvmlDevice_t device[SMI_MAX_GPUS];
    char path[SMI_MAX_GPUS][PATH_MAX];
    int numa[SMI_MAX_GPUS];
    struct nic nic[MAX_NICS];
};

static void place_gpu(struct matrix *matrix, unsigned int index)
{
    nvmlPciInfo_t pci;
    char link[PATH_MAX];
    matrix->numa[index] = -1;
    if (nvmlDeviceGetPciInfo_v3(matrix->device[index], &pci) == NVML_SUCCESS &&
        (size_t)snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/%04x:%02x:%02x.0", mock_root(), pci.domain, pci.bus,
                         pci.device) < sizeof(link) &&
        !locate(link, matrix->path[index], &matrix->numa[index]))
        matrix->path[index][0] = '\0';
}

static void print_rows(const struct matrix *matrix)
{
    char room[TEXT_ROOM];
    for (unsigned int row = 0; row < matrix->gpus; ++row) {
        printf("GPU%u", row);
        for (unsigned int column = 0; column < matrix->gpus; ++column)
            printf("\t%s", row == column ? " X " : between_gpus(matrix->device[row], matrix->device[column], room));
        for (unsigned int column = 0; column < matrix->nics; ++column)
            printf("\t%s", class_of(matrix->path[row], matrix->numa[row], matrix->nic[column].path,
                                    matrix->nic[column].numa));
        affinity(matrix->device[row]);
        printf("\n");
    }
    for (unsigned int row = 0; row < matrix->nics; ++row) {
        const struct nic *nic = &matrix->nic[row];
        printf("NIC%u", row);
        for (unsigned int column = 0; column < matrix->gpus; ++column)
            printf("\t%s", class_of(nic->path, nic->numa, matrix->path[column], matrix->numa[column]));
        for (unsigned int column = 0; column < matrix->nics; ++column)
            printf("\t%s", row == column ? " X "
                                         : class_of(nic->path, nic->numa, matrix->nic[column].path,
                                                    matrix->nic[column].numa));
        printf("\n");
    }
}

nvmlReturn_t smi_topology(void)
{
    static struct matrix matrix;
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&matrix.gpus);
    matrix.gpus = matrix.gpus < SMI_MAX_GPUS ? matrix.gpus : SMI_MAX_GPUS;
    for (unsigned int i = 0; result == NVML_SUCCESS && i < matrix.gpus; ++i) {
        result = nvmlDeviceGetHandleByIndex_v2(i, &matrix.device[i]);
        if (result == NVML_SUCCESS)
            place_gpu(&matrix, i);
    }
    if (result != NVML_SUCCESS) {
        printf("Failed to read the topology: %s\n", nvmlErrorString(result));
        return result;
    }
    matrix.nics = find_nics(matrix.nic);
    for (unsigned int i = 0; i < matrix.gpus; ++i)
        printf("\tGPU%u", i);
    for (unsigned int i = 0; i < matrix.nics; ++i)
        printf("\tNIC%u", i);
    printf("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
    print_rows(&matrix);
    printf("\nLegend:\n\n  X    = Self\n"
           "  SYS  = from one NUMA node to another\n"
           "  NODE = from one PCIe host bridge to another of the same NUMA node\n"
           "  PHB  = over a PCIe host bridge\n"
           "  PXB  = over several PCIe bridges, but no host bridge\n"
           "  PIX  = over at most one PCIe bridge\n"
           "  NV#  = over # NVLinks\n");
    if (matrix.nics > 0)
        printf("\nNIC Legend:\n\n");
    for (unsigned int i = 0; i < matrix.nics; ++i)
        printf("  NIC%u: %s\n", i, matrix.nic[i].name);
    return NVML_SUCCESS;
}

static nvmlReturn_t show_links(unsigned int index, nvmlDevice_t device, const void *argument)
{
    char name[TEXT_ROOM], uuid[TEXT_ROOM];
    bool begun = false;
    (void)argument;
    for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
        nvmlEnableState_t active;
        if (nvmlDeviceGetNvLinkState(device, link, &active) != NVML_SUCCESS)
            continue;
        if (!begun)
            printf("GPU %u: %s (UUID: %s)\n", index, smi_text(name, nvmlDeviceGetName(device, name, sizeof(name))),
                   smi_text(uuid, nvmlDeviceGetUUID(device, uuid, sizeof(uuid))));
        begun = true;
        nvmlFieldValue_t speed = {.fieldId = NVML_FI_DEV_NVLINK_GET_SPEED, .scopeId = link};
        if (active == NVML_FEATURE_ENABLED && nvmlDeviceGetFieldValues(device, 1, &speed) == NVML_SUCCESS &&
            speed.nvmlReturn == NVML_SUCCESS)
            printf("\t Link %u: %.3f GB/s\n", link, (double)speed.value.uiVal / 1000.0);
        else
            printf("\t Link %u: <inactive>\n", link);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t smi_links(const struct smi_options *options)
{
    return smi_for_each(options, show_links, NULL);
}
