/* The mock's nvidia-smi. The core is linked in and the program is static, so it runs in an image without a libc.
 *
 * It speaks to the core through NVML's own functions, so faults and visibility show here as anywhere else.
 */
#include <stdio.h>
#include <stdlib.h>

#include "mock.h"

#define TEXT_ROOM 128

static int fail(nvmlReturn_t code)
{
    if (code == NVML_ERROR_DRIVER_NOT_LOADED) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
               "Make sure that the latest NVIDIA driver is installed and running.\n\n");
        return (int)code;
    }
    printf("Failed to initialize NVML: %s\n", nvmlErrorString(code));
    return (int)code;
}

/* A number, or N/A where the board has none. */
static const char *quantity(char room[TEXT_ROOM], nvmlReturn_t code, unsigned long long value, const char *unit)
{
    if (code == NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "%llu%s", value, unit);
    else
        snprintf(room, TEXT_ROOM, "N/A");
    return room;
}

static const char *text(char room[TEXT_ROOM], nvmlReturn_t code)
{
    if (code != NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "N/A");
    room[TEXT_ROOM - 1] = '\0';
    return room;
}

static nvmlReturn_t list(void)
{
    unsigned int count = 0;
    nvmlReturn_t worst = nvmlDeviceGetCount_v2(&count);
    for (unsigned int i = 0; i < count; ++i) {
        nvmlDevice_t device;
        char name[TEXT_ROOM], uuid[TEXT_ROOM];
        const nvmlReturn_t code = nvmlDeviceGetHandleByIndex_v2(i, &device);
        if (code != NVML_SUCCESS) {
            printf("Unable to determine the device handle for gpu %u: %s\n", i, nvmlErrorString(code));
            worst = code;
            continue;
        }
        const char *said = text(name, nvmlDeviceGetName(device, name, sizeof(name)));
        printf("GPU %u: %s (UUID: %s)\n", i, said, text(uuid, nvmlDeviceGetUUID(device, uuid, sizeof(uuid))));
    }
    if (count == 0 && worst == NVML_SUCCESS)
        printf("No devices found.\n");
    return worst;
}

static void summarise_gpu(unsigned int index, nvmlDevice_t device)
{
    char name[TEXT_ROOM], uuid[TEXT_ROOM], room[4][TEXT_ROOM];
    nvmlPciInfo_t pci;
    nvmlMemory_v2_t memory = {.version = MOCK_VERSION_OF(nvmlMemory_v2_t, 2)};
    nvmlTemperature_t heat = {.version = MOCK_VERSION_OF(nvmlTemperature_v1_t, 1)};
    unsigned int power = 0;
    const nvmlReturn_t located = nvmlDeviceGetPciInfo_v3(device, &pci);
    const nvmlReturn_t sized = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    const nvmlReturn_t warmed = nvmlDeviceGetTemperatureV(device, &heat);
    const nvmlReturn_t drawn = nvmlDeviceGetPowerUsage(device, &power);
    printf("| %3u  %-28.28s %16.16s |\n", index, text(name, nvmlDeviceGetName(device, name, sizeof(name))),
           located == NVML_SUCCESS ? pci.busId : "N/A");
    printf("|      %-45s |\n", text(uuid, nvmlDeviceGetUUID(device, uuid, sizeof(uuid))));
    printf("|      %6s %6s %14s / %14s |\n", quantity(room[0], warmed, (unsigned int)heat.temperature, "C"),
           quantity(room[1], drawn, power / 1000U, "W"), quantity(room[2], sized, memory.used >> 20U, "MiB"),
           quantity(room[3], sized, memory.total >> 20U, "MiB"));
}

static void versions(char driver[TEXT_ROOM], char cuda[TEXT_ROOM])
{
    int number = 0;
    text(driver, nvmlSystemGetDriverVersion(driver, TEXT_ROOM));
    const nvmlReturn_t code = nvmlSystemGetCudaDriverVersion_v2(&number);
    snprintf(cuda, TEXT_ROOM, "%d.%d", number / 1000, number % 1000 / 10);
    text(cuda, code);
}

static nvmlReturn_t summary(void)
{
    static const char rule[] = "+----------------------------------------------------+";
    char driver[TEXT_ROOM], cuda[TEXT_ROOM];
    unsigned int count = 0;
    nvmlReturn_t worst = nvmlDeviceGetCount_v2(&count);
    versions(driver, cuda);
    printf("%s\n| NVIDIA-SMI (gpudra mock)   Driver: %-15s |\n|                            CUDA:   %-15s |\n%s\n", rule,
           driver, cuda, rule);
    for (unsigned int i = 0; i < count; ++i) {
        nvmlDevice_t device;
        const nvmlReturn_t code = nvmlDeviceGetHandleByIndex_v2(i, &device);
        if (code == NVML_SUCCESS)
            summarise_gpu(i, device);
        else
            printf("| %3u  %-45s |\n", i, nvmlErrorString(worst = code));
    }
    if (count == 0)
        printf("| %-50s |\n", "No devices were found");
    printf("%s\n", rule);
    return worst;
}

static nvmlReturn_t version(void)
{
    char driver[TEXT_ROOM], cuda[TEXT_ROOM], nvml[TEXT_ROOM];
    versions(driver, cuda);
    text(nvml, nvmlSystemGetNVMLVersion(nvml, sizeof(nvml)));
    printf("NVIDIA-SMI version  : %s (gpudra mock)\nNVML version        : %s\nDRIVER version      : %s\n"
           "CUDA Version        : %s\n", driver, nvml, driver, cuda);
    return NVML_SUCCESS;
}

static int usage(FILE *stream, int status)
{
    fprintf(stream, "nvidia-smi of the gpudra mock\n\n"
                    "  nvidia-smi              a summary of the GPUs that this process sees\n"
                    "  nvidia-smi -L           list them with their UUIDs (also --list-gpus)\n"
                    "  nvidia-smi --version    versions of driver, NVML and CUDA\n");
    return status;
}

int main(int argc, char **argv)
{
    nvmlReturn_t (*verb)(void) = summary;
    const char *option = argc > 1 ? argv[1] : "";
    if (argc > 2)
        return usage(stderr, 2);
    if (strcmp(option, "-h") == 0 || strcmp(option, "--help") == 0)
        return usage(stdout, 0);
    if (strcmp(option, "-L") == 0 || strcmp(option, "--list-gpus") == 0)
        verb = list;
    else if (strcmp(option, "--version") == 0)
        verb = version;
    else if (*option != '\0')
        return usage(stderr, 2);
    const nvmlReturn_t code = nvmlInitWithFlags(0);
    if (code != NVML_SUCCESS)
        return fail(code);
    const nvmlReturn_t result = verb();
    const nvmlReturn_t ended = nvmlShutdown();
    return (int)(result != NVML_SUCCESS ? result : ended);
}
