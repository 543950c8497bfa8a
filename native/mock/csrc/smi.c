/* The mock's nvidia-smi. The core is linked in and the program is static, so it runs in an image without a libc.
 *
 * It speaks to the core through NVML's own functions, so faults and visibility show here as anywhere else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "programs.h"
#include "smi.h"

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
const char *smi_number(char room[TEXT_ROOM], nvmlReturn_t code, unsigned long long value, const char *unit)
{
    if (code == NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "%llu%s", value, unit);
    else
        snprintf(room, TEXT_ROOM, "N/A");
    return room;
}

const char *smi_text(char room[TEXT_ROOM], nvmlReturn_t code)
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
        const char *said = smi_text(name, nvmlDeviceGetName(device, name, sizeof(name)));
        printf("GPU %u: %s (UUID: %s)\n", i, said, smi_text(uuid, nvmlDeviceGetUUID(device, uuid, sizeof(uuid))));
        smi_list_mig(device);
    }
    if (count == 0 && worst == NVML_SUCCESS)
        printf("No devices found.\n");
    return worst;
}

static void versions(char driver[TEXT_ROOM], char cuda[TEXT_ROOM])
{
    int number = 0;
    smi_text(driver, nvmlSystemGetDriverVersion(driver, TEXT_ROOM));
    const nvmlReturn_t code = nvmlSystemGetCudaDriverVersion_v2(&number);
    snprintf(cuda, TEXT_ROOM, "%d.%d", number / 1000, number % 1000 / 10);
    smi_text(cuda, code);
}

static nvmlReturn_t version(void)
{
    char driver[TEXT_ROOM], cuda[TEXT_ROOM], nvml[TEXT_ROOM];
    versions(driver, cuda);
    smi_text(nvml, nvmlSystemGetNVMLVersion(nvml, sizeof(nvml)));
    printf("NVIDIA-SMI version  : %s (gpudra mock)\nNVML version        : %s\nDRIVER version      : %s\n"
           "CUDA Version        : %s\n", driver, nvml, driver, cuda);
    return NVML_SUCCESS;
}

static int usage(FILE *stream, int status)
{
    fprintf(stream,
            "nvidia-smi of the gpudra mock\n\n"
            "  nvidia-smi                       a summary of the GPUs that this process sees\n"
            "  nvidia-smi -L                    list them and their MIG devices with UUIDs (also --list-gpus)\n"
            "  nvidia-smi -q [-d MEMORY,...]    everything, or some of it, as text\n"
            "  nvidia-smi -q -x                 everything, as XML\n"
            "  nvidia-smi dmon [-s pucmet] [-c COUNT] [-d SECONDS]\n"
            "  nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
            "  nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]\n"
            "  nvidia-smi topo -m               how GPUs, NICs and CPUs are connected\n"
            "  nvidia-smi nvlink -s             the NVLinks of each GPU and how fast they are\n"
            "  nvidia-smi mig -lgip | -lgipp | -lgi | -lci | -lcip\n"
            "  nvidia-smi mig -cgi PROFILE[:START],... [-C] | -cci [PROFILE,...] | -dci | -dgi\n"
            "  nvidia-smi -mig 0|1              MIG mode\n"
            "  nvidia-smi -pm 0|1, -c MODE      persistence mode, compute mode\n"
            "  nvidia-smi compute-policy -l | --set-timeslice 0..3\n"
            "  nvidia-smi --version             versions of driver, NVML and CUDA\n\n"
            "  -i GPU,...   only these, by index, UUID or PCI bus id;  -gi ID,...  -ci ID,...  only these instances\n");
    return status;
}

bool smi_listed(const char *list, unsigned int number)
{
    if (list == NULL)
        return true;
    for (const char *at = list; *at != '\0';) {
        char *end;
        const unsigned long found = strtoul(at, &end, 10);
        if (end == at)
            return false;
        if (found == number)
            return true;
        at = *end == ',' ? end + 1 : end;
    }
    return false;
}

/* Whether -i means this GPU: its index, its UUID or its bus id. */
static bool is_meant(const char *ids, unsigned int index, nvmlDevice_t device)
{
    char uuid[TEXT_ROOM] = "";
    nvmlPciInfo_t pci = {0};
    if (ids == NULL)
        return true;
    if (nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
        uuid[0] = '\0';
    if (nvmlDeviceGetPciInfo_v3(device, &pci) != NVML_SUCCESS)
        pci.busId[0] = '\0';
    for (const char *at = ids; *at != '\0';) {
        char *end;
        const size_t length = strcspn(at, ",");
        const unsigned long number = strtoul(at, &end, 10);
        const size_t bus = strlen(pci.busId);
        if ((end == at + length && length > 0 && number == index) ||
            (length == strlen(uuid) && length > 0 && strncasecmp(at, uuid, length) == 0) ||
            (length > 0 && length <= bus && strchr(at, ':') != NULL && strncasecmp(at, pci.busId + bus - length, length) == 0))
            return true;
        at += length + (at[length] == ',');
    }
    return false;
}

nvmlReturn_t smi_for_each(const struct smi_options *options, smi_each *function, const void *argument)
{
    unsigned int count = 0, met = 0;
    nvmlReturn_t worst = nvmlDeviceGetCount_v2(&count);
    for (unsigned int i = 0; i < count; ++i) {
        nvmlDevice_t device;
        nvmlReturn_t result = nvmlDeviceGetHandleByIndex_v2(i, &device);
        if (result != NVML_SUCCESS) {
            if ((options->ids == NULL || smi_listed(options->ids, i)) && !options->quiet) {
                printf("Unable to determine the device handle for gpu %u: %s\n", i, nvmlErrorString(result));
                worst = result;
                ++met;
            }
            continue;
        }
        if (!is_meant(options->ids, i, device))
            continue;
        ++met;
        result = function(i, device, argument);
        worst = result != NVML_SUCCESS ? result : worst;
    }
    if (met == 0 && worst == NVML_SUCCESS && !options->quiet) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    return worst;
}

/* Takes the options that may stand anywhere out of the arguments. */
static int take_options(int argc, char **argv, struct smi_options *options)
{
    int kept = 0;
    for (int i = 0; i < argc; ++i) {
        const bool more = i + 1 < argc;
        if (more && (strcmp(argv[i], "-i") == 0 || strcmp(argv[i], "--id") == 0))
            options->ids = argv[++i];
        else if (strncmp(argv[i], "--id=", 5) == 0)
            options->ids = argv[i] + 5;
        else if (more && (strcmp(argv[i], "-gi") == 0 || strcmp(argv[i], "--gpu-instance-id") == 0))
            options->gi = argv[++i];
        else if (more && (strcmp(argv[i], "-ci") == 0 || strcmp(argv[i], "--compute-instance-id") == 0))
            options->ci = argv[++i];
        else if (strcmp(argv[i], "-C") == 0 || strcmp(argv[i], "--default-compute-instance") == 0)
            options->make_default = true;
        else if (strncmp(argv[i], "--format=", 9) == 0)
            options->format = argv[i] + 9;
        else
            argv[kept++] = argv[i];
    }
    return kept;
}

/* -q, -q -x, -q -d WORD,... */
static nvmlReturn_t query_long(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    if (argc == 1 && (strcmp(argv[0], "-x") == 0 || strcmp(argv[0], "--xml-format") == 0))
        return smi_xml(options);
    const char *display = argc == 2 && (strcmp(argv[0], "-d") == 0 || strcmp(argv[0], "--display") == 0) ? argv[1]
                          : argc == 1 && strncmp(argv[0], "--display=", 10) == 0                         ? argv[0] + 10
                                                                                                        : NULL;
    *understood = argc == 0 || (display != NULL && smi_is_display(display));
    return *understood ? smi_long(options, display) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t perform(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    const char *verb = argc > 0 ? argv[0] : "";
    *understood = true;
    if (argc == 0)
        return smi_summary(options);
    if (argc == 1 && (strcmp(verb, "-L") == 0 || strcmp(verb, "--list-gpus") == 0))
        return list();
    if (argc == 1 && strcmp(verb, "--version") == 0)
        return version();
    if (argc == 1 && strncmp(verb, "--query-gpu=", 12) == 0 && options->format != NULL)
        return smi_query(options, verb + 12);
    if (argc == 1 && strncmp(verb, "--query-compute-apps=", 21) == 0 && options->format != NULL)
        return smi_query_apps(options, verb + 21);
    if (strcmp(verb, "-q") == 0 || strcmp(verb, "--query") == 0)
        return query_long(argc - 1, argv + 1, options, understood);
    if (strcmp(verb, "dmon") == 0)
        return smi_monitor(argc - 1, argv + 1, options, understood);
    if (argc == 2 && strcmp(verb, "topo") == 0 && (strcmp(argv[1], "-m") == 0 || strcmp(argv[1], "--matrix") == 0))
        return smi_topology();
    if (argc == 2 && strcmp(verb, "nvlink") == 0 && (strcmp(argv[1], "-s") == 0 || strcmp(argv[1], "--status") == 0))
        return smi_links(options);
    if (argc == 2 && strcmp(verb, "-x") == 0 && strcmp(argv[1], "-q") == 0)
        return smi_xml(options);
    if (argc >= 2 && strcmp(verb, "mig") == 0)
        return smi_mig(argc - 1, argv + 1, options, understood);
    if (argc >= 2 && strcmp(verb, "compute-policy") == 0)
        return smi_policy(argc - 1, argv + 1, options, understood);
    return smi_setting(argc, argv, options, understood);
}

int main(int argc, char **argv)
{
    struct smi_options options = {0};
    bool understood;
    if (argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0))
        return usage(stdout, 0);
    const int left = take_options(argc - 1, argv + 1, &options);
    program_find_node();
    nvmlReturn_t code = nvmlInitWithFlags(0);
    if (code == NVML_SUCCESS)
        code = mock_rule("nvidia-smi", NULL, false); /* the program itself: it fails, or never comes back */
    if (code != NVML_SUCCESS)
        return fail(code);
    const nvmlReturn_t result = perform(left, argv + 1, &options, &understood);
    const nvmlReturn_t ended = nvmlShutdown();
    if (!understood)
        return usage(stderr, 2);
    return (int)(result != NVML_SUCCESS ? result : ended);
}
