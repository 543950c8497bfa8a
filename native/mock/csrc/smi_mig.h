/* What the lists and the changes of nvidia-smi mig share. */
#ifndef GPUDRA_MOCK_SMI_MIG_H
#define GPUDRA_MOCK_SMI_MIG_H

#include "smi.h"

#define MAX_INSTANCES 16

struct wish {
    const struct smi_options *options;
    const char *profiles; /* of -cgi or -cci */
};

/* The GPU instance profiles of a GPU in the order in which NVIDIA lists them; how many. */
unsigned int smi_profiles(nvmlDevice_t device, nvmlGpuInstanceProfileInfo_v2_t out[NVML_GPU_INSTANCE_PROFILE_COUNT]);
nvmlReturn_t smi_ci_profile(nvmlGpuInstance_t instance, unsigned int index, nvmlComputeInstanceProfileInfo_v2_t *info);

/* Calls something for every GPU instance that -gi names, in the order of profiles. */
typedef nvmlReturn_t each_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                   const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish);
nvmlReturn_t smi_for_instances(unsigned int index, nvmlDevice_t device, const struct wish *wish, each_instance *call);

/* -lgip, -lgipp, -lgi, -lci, -lcip; false for anything else. */
bool smi_mig_list(const char *verb, const struct wish *wish, nvmlReturn_t *result);

#endif
