/* What nvidia-smi changes on a GPU: compute mode, persistence mode, time slice. The words are those that people paste into
 * bug reports (NVIDIA/go-nvml#61 shows the refusal on a GPU that MIG divides); compute-policy is shown in words of our own,
 * nobody has published NVIDIA's table.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "smi.h"

#define WORDS 4
static const char *const compute_words[WORDS] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
static const char *const slice_words[WORDS] = {"Default", "Short", "Medium", "Long"};

const char *smi_bus_id(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (nvmlDeviceGetPciInfo_v3(device, pci) != NVML_SUCCESS)
        snprintf(pci->busId, sizeof(pci->busId), "?");
    return pci->busId;
}

static nvmlReturn_t set_persistence(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const nvmlEnableState_t mode = *(const nvmlEnableState_t *)argument;
    nvmlEnableState_t before;
    nvmlPciInfo_t pci = {0};
    const char *bus = smi_bus_id(device, &pci), *word = mode == NVML_FEATURE_ENABLED ? "Enabled" : "Disabled";
    (void)index;
    nvmlReturn_t result = nvmlDeviceGetPersistenceMode(device, &before);
    if (result == NVML_SUCCESS && before == mode) {
        printf("Persistence mode is already %s for GPU %s.\n", word, bus);
        return result;
    }
    result = nvmlDeviceSetPersistenceMode(device, mode);
    if (result == NVML_SUCCESS)
        printf("%s persistence mode for GPU %s.\n", word, bus);
    else
        printf("Unable to set persistence mode for GPU %s: %s\n", bus, nvmlErrorString(result));
    return result;
}

static nvmlReturn_t set_compute(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const nvmlComputeMode_t mode = *(const nvmlComputeMode_t *)argument;
    nvmlComputeMode_t before;
    nvmlPciInfo_t pci = {0};
    unsigned int divided = 0, pending = 0;
    const char *bus = smi_bus_id(device, &pci), *word = compute_words[mode];
    (void)index;
    nvmlReturn_t result = nvmlDeviceGetComputeMode(device, &before);
    if (result == NVML_SUCCESS && before == mode) {
        printf("Compute mode is already set to %s for GPU %s.\n", word, bus);
        return result;
    }
    result = nvmlDeviceSetComputeMode(device, mode);
    if (result == NVML_SUCCESS) {
        printf("Set compute mode to %s for GPU %s.\n", word, bus);
        return result;
    }
    const bool mig = nvmlDeviceGetMigMode(device, &divided, &pending) == NVML_SUCCESS && divided == 1;
    if (mig)
        printf("Setting compute mode to %s is not supported on a MIG-enabled device.\n", word);
    printf("Unable to set the compute mode for GPU %s: %s\n", bus, nvmlErrorString(result));
    if (mig && result == NVML_ERROR_NOT_SUPPORTED) {
        printf("Treating as warning and moving on.\n");
        return NVML_SUCCESS;
    }
    return result;
}

/* The time slice is no part of NVML: nvidia-smi sets it by a way of its own, and so does this one. */
static nvmlReturn_t set_timeslice(unsigned int index, nvmlDevice_t device, const void *slice)
{
    const int64_t value = *(const int64_t *)slice;
    nvmlPciInfo_t pci = {0};
    const char *bus = smi_bus_id(device, &pci);
    (void)index;
    nvmlReturn_t result = mock_rule("nvidia-smi.set-timeslice", device, false);
    if (result == NVML_SUCCESS)
        result = mock_set(&mock_gpu(device)->timeslice, value);
    if (result == NVML_SUCCESS)
        printf("Set timeslice to %s for GPU %s.\n", slice_words[value], bus);
    else
        printf("Unable to set the timeslice for GPU %s: %s\n", bus, nvmlErrorString(result));
    return result;
}

static nvmlReturn_t show_timeslice(unsigned int index, nvmlDevice_t device, const void *argument)
{
    (void)argument;
    printf("GPU %u: timeslice %s\n", index, slice_words[mock_gpu(device)->timeslice & 3]);
    return NVML_SUCCESS;
}

static nvmlReturn_t set_all(const struct smi_options *options, smi_each *function, const void *argument)
{
    const nvmlReturn_t result = smi_for_each(options, function, argument);
    printf(result == NVML_SUCCESS ? "All done.\n" : "Terminating early due to previous errors.\n");
    return result;
}

static bool small_number(const char *text, unsigned int most, unsigned int *number)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    *number = (unsigned int)value;
    return end != text && *end == '\0' && value <= most;
}

/* A number, or one of the words for it. */
static bool worded(const char *text, const char *const *words, unsigned int count, unsigned int *number)
{
    if (small_number(text, count - 1, number))
        return true;
    for (*number = 0; *number < count; ++*number)
        if (strcasecmp(text, words[*number]) == 0)
            return true;
    return false;
}

nvmlReturn_t smi_policy(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    unsigned int slice = 0;
    if (argc == 1 && (strcmp(argv[0], "-l") == 0 || strcmp(argv[0], "--list") == 0))
        return smi_for_each(options, show_timeslice, NULL);
    const char *value = argc == 1 && strncmp(argv[0], "--set-timeslice=", 16) == 0 ? argv[0] + 16
                        : argc == 2 && strcmp(argv[0], "--set-timeslice") == 0     ? argv[1]
                                                                                  : "";
    *understood = worded(value, slice_words, WORDS, &slice);
    const int64_t wide = slice;
    return *understood ? set_all(options, set_timeslice, &wide) : NVML_ERROR_INVALID_ARGUMENT;
}

/* The value of "-c 3", "-c=3" or "--compute-mode=3"; NULL where the arguments are about something else. */
static const char *value_of(int argc, char **argv, const char *brief, const char *full)
{
    const char *const names[] = {brief, full};
    for (unsigned int i = 0; i < 2; ++i) {
        const size_t length = strlen(names[i]);
        if (argc == 2 && strcmp(argv[0], names[i]) == 0)
            return argv[1];
        if (argc == 1 && strncmp(argv[0], names[i], length) == 0 && argv[0][length] == '=')
            return argv[0] + length + 1;
    }
    return NULL;
}

nvmlReturn_t smi_setting(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    static const char *const modes[] = {"DISABLED", "ENABLED"};
    unsigned int number = 0;
    const char *value = value_of(argc, argv, "-mig", "--multi-instance-gpu");
    if (value != NULL && worded(value, modes, 2, &number))
        return smi_mig_mode(options, number);
    value = value_of(argc, argv, "-pm", "--persistence-mode");
    if (value != NULL && worded(value, modes, 2, &number)) {
        const nvmlEnableState_t mode = (nvmlEnableState_t)number;
        return set_all(options, set_persistence, &mode);
    }
    value = value_of(argc, argv, "-c", "--compute-mode");
    if (value != NULL && worded(value, compute_words, WORDS, &number)) {
        const nvmlComputeMode_t mode = (nvmlComputeMode_t)number;
        return set_all(options, set_compute, &mode);
    }
    *understood = false;
    return NVML_ERROR_INVALID_ARGUMENT;
}
