/* nvidia-smi mig and -mig: what changes instances and modes, in NVIDIA's words. The lists are in smi_mig_list.c. */
#include <stdlib.h>
#include <string.h>

#include "smi_mig.h"

/* "19", "1g.10gb" or "MIG 1g.10gb", and ":start" where the place matters. */
static bool is_profile(const char *word, size_t length, unsigned int id, const char *name)
{
    char *end;
    const unsigned long number = strtoul(word, &end, 10);
    const char *bare = strncmp(name, "MIG ", 4) == 0 ? name + 4 : name;
    if (end == word + length)
        return number == id;
    if (length > 4 && strncmp(word, "MIG ", 4) == 0) {
        word += 4;
        length -= 4;
    }
    return strlen(bare) == length && strncmp(bare, word, length) == 0;
}

static nvmlReturn_t make_compute(unsigned int index, nvmlGpuInstance_t instance, unsigned int gi, const char *word,
                                 size_t length)
{
    for (unsigned int i = 0; i < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlComputeInstanceProfileInfo_v2_t of;
        nvmlComputeInstanceInfo_t info;
        nvmlComputeInstance_t made;
        if (smi_ci_profile(instance, i, &of) != NVML_SUCCESS)
            continue;
        const bool whole = strncmp(of.name, "MIG ", 4) == 0 && strstr(of.name, "c.") == NULL;
        if (word == NULL ? !whole : !is_profile(word, length, of.id, of.name))
            continue;
        nvmlReturn_t result = nvmlGpuInstanceCreateComputeInstance(instance, of.id, &made);
        if (result == NVML_SUCCESS)
            result = nvmlComputeInstanceGetInfo_v2(made, &info);
        if (result != NVML_SUCCESS) {
            printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u: %s\n", index, gi,
                   of.id, nvmlErrorString(result));
            return result;
        }
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
               info.id, index, gi, of.name, of.id);
        return NVML_SUCCESS;
    }
    printf("Unable to find a compute instance profile on GPU %2u GPU instance ID %2u: Invalid Argument\n", index, gi);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t make_instance(unsigned int index, nvmlDevice_t device, const char *word, size_t length,
                                  const struct wish *wish)
{
    const char *colon = memchr(word, ':', length);
    const size_t name = colon != NULL ? (size_t)(colon - word) : length;
    nvmlGpuInstanceProfileInfo_v2_t profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
    const unsigned int known = smi_profiles(device, profiles);
    for (unsigned int i = 0; i < known; ++i) {
        const nvmlGpuInstanceProfileInfo_v2_t of = profiles[i];
        nvmlGpuInstancePlacement_t place[MOCK_MAX_STARTS];
        nvmlGpuInstanceInfo_t info;
        nvmlGpuInstance_t made;
        unsigned int count = 0;
        if (!is_profile(word, name, of.id, of.name))
            continue;
        nvmlReturn_t result = nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, of.id, place, &count);
        if (result == NVML_SUCCESS && colon != NULL) {
            place[0].start = (unsigned int)strtoul(colon + 1, NULL, 10);
            result = nvmlDeviceCreateGpuInstanceWithPlacement(device, of.id, &place[0], &made);
        } else if (result == NVML_SUCCESS) {
            result = nvmlDeviceCreateGpuInstance(device, of.id, &made);
        }
        if (result == NVML_SUCCESS)
            result = nvmlGpuInstanceGetInfo(made, &info);
        if (result != NVML_SUCCESS) {
            printf("Unable to create a GPU instance on GPU %2u using profile %u: %s\n", index, of.id,
                   nvmlErrorString(result));
            return result;
        }
        printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, index, of.name,
               of.id);
        return wish->options->make_default ? make_compute(index, made, info.id, NULL, 0) : NVML_SUCCESS;
    }
    printf("Unable to find the GPU instance profile %.*s on GPU %2u: Invalid Argument\n", (int)length, word, index);
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* The first failure ends the list, as with NVIDIA's. */
static nvmlReturn_t make_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const struct wish *wish = argument;
    nvmlReturn_t result = NVML_SUCCESS;
    for (const char *word = wish->profiles; result == NVML_SUCCESS && *word != '\0';) {
        const size_t length = strcspn(word, ",");
        result = make_instance(index, device, word, length, wish);
        word += length + (word[length] == ',');
    }
    return result;
}

static nvmlReturn_t make_computes_in(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    nvmlReturn_t result = NVML_SUCCESS;
    (void)device;
    (void)profile;
    if (wish->profiles == NULL)
        return make_compute(index, instance, info->id, NULL, 0);
    for (const char *word = wish->profiles; result == NVML_SUCCESS && *word != '\0';) {
        const size_t length = strcspn(word, ",");
        result = make_compute(index, instance, info->id, word, length);
        word += length + (word[length] == ',');
    }
    return result;
}

static nvmlReturn_t make_computes(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, make_computes_in);
}

static nvmlReturn_t destroy_computes_in(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                        const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    nvmlReturn_t worst = NVML_SUCCESS;
    (void)device;
    (void)profile;
    for (unsigned int id = 0; id < MOCK_CI_IDS; ++id) {
        nvmlComputeInstance_t found;
        if (!smi_listed(wish->options->ci, id) ||
            nvmlGpuInstanceGetComputeInstanceById(instance, id, &found) != NVML_SUCCESS)
            continue;
        const nvmlReturn_t result = nvmlComputeInstanceDestroy(found);
        if (result == NVML_SUCCESS)
            printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", id, index, info->id);
        else
            printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", id, index, info->id,
                   nvmlErrorString(worst = result));
    }
    return worst;
}

static nvmlReturn_t destroy_computes(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, destroy_computes_in);
}

static nvmlReturn_t destroy_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    (void)device;
    (void)profile;
    (void)wish;
    const nvmlReturn_t result = nvmlGpuInstanceDestroy(instance);
    if (result == NVML_SUCCESS)
        printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info->id, index);
    else
        printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", info->id, index, nvmlErrorString(result));
    return result;
}

static nvmlReturn_t destroy_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, destroy_instance);
}

/* The brief name of an option that is spelt out. */
static const char *brief(const char *verb)
{
    static const char *const names[][2] = {
        {"--list-gpu-instance-profiles", "-lgip"},    {"--list-gpu-instance-possible-placements", "-lgipp"},
        {"--list-gpu-instances", "-lgi"},             {"--list-compute-instances", "-lci"},
        {"--list-compute-instance-profiles", "-lcip"}, {"--create-gpu-instance", "-cgi"},
        {"--create-compute-instance", "-cci"},        {"--destroy-compute-instance", "-dci"},
        {"--destroy-gpu-instance", "-dgi"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i)
        if (strcmp(verb, names[i][0]) == 0)
            return names[i][1];
    return verb;
}

nvmlReturn_t smi_mig(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    struct wish wish = {options, NULL};
    const char *verb = brief(argc > 0 ? argv[0] : "");
    const bool takes_profiles = strcmp(verb, "-cgi") == 0 || strcmp(verb, "-cci") == 0;
    if (takes_profiles && argc > 1 && argv[1][0] != '-')
        wish.profiles = argv[1];
    *understood = argc == 1 || (argc == 2 && wish.profiles != NULL);
    if (!*understood)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result;
    if (argc == 1 && smi_mig_list(verb, &wish, &result))
        return result;
    if (strcmp(verb, "-cgi") == 0 && wish.profiles != NULL)
        return smi_for_each(options, make_instances, &wish);
    if (strcmp(verb, "-cci") == 0)
        return smi_for_each(options, make_computes, &wish);
    if (strcmp(verb, "-dci") == 0)
        return smi_for_each(options, destroy_computes, &wish);
    if (strcmp(verb, "-dgi") == 0)
        return smi_for_each(options, destroy_instances, &wish);
    *understood = false;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static void warn(unsigned int mode, const char *bus, nvmlReturn_t activation)
{
    printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", bus,
           nvmlErrorString(activation));
    if (activation == NVML_ERROR_IN_USE)
        printf("%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
               "application such as another instance of nvidia-smi). Please first kill all processes using the device "
               "and retry the command or reboot the system to make MIG mode effective.\n", bus);
    else
        printf("Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU %s\n", bus);
}

static nvmlReturn_t set_mode(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const unsigned int mode = *(const unsigned int *)argument;
    nvmlReturn_t activation = NVML_SUCCESS;
    nvmlPciInfo_t pci = {0};
    (void)index;
    (void)smi_bus_id(device, &pci);
    const nvmlReturn_t result = nvmlDeviceSetMigMode(device, mode, &activation);
    if (result != NVML_SUCCESS)
        printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", pci.busId, nvmlErrorString(result));
    else if (activation != NVML_SUCCESS)
        warn(mode, pci.busId, activation);
    else
        printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", pci.busId);
    return result;
}

nvmlReturn_t smi_mig_mode(const struct smi_options *options, unsigned int mode)
{
    const nvmlReturn_t result = smi_for_each(options, set_mode, &mode);
    if (result == NVML_SUCCESS)
        printf("All done.\n");
    return result;
}

void smi_list_mig(nvmlDevice_t device)
{
    unsigned int most = 0;
    if (nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
        return;
    for (unsigned int index = 0; index < most; ++index) {
        nvmlDevice_t mig;
        char name[TEXT_ROOM], uuid[TEXT_ROOM];
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, index, &mig) != NVML_SUCCESS ||
            nvmlDeviceGetName(mig, name, sizeof(name)) != NVML_SUCCESS)
            continue;
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile != NULL ? profile + 5 : name, index,
               smi_text(uuid, nvmlDeviceGetUUID(mig, uuid, sizeof(uuid))));
    }
}
