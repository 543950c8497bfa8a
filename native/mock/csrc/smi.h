/* What the parts of the mock nvidia-smi share. */
#ifndef GPUDRA_MOCK_SMI_H
#define GPUDRA_MOCK_SMI_H

#include <stdio.h>

#include "mock.h"

#define TEXT_ROOM 128
#define SMI_MAX_GPUS 256

/* The options that may stand with any verb. */
struct smi_options {
    const char *ids;  /* -i: indexes, UUIDs or bus ids, by comma; NULL is all */
    const char *gi;   /* -gi: GPU instance ids, by comma; NULL is all */
    const char *ci;   /* -ci */
    const char *format;
    bool make_default; /* -C: a compute instance with each GPU instance */
    bool quiet;        /* another pass over the same GPUs: what cannot be reached has been said */
};

const char *smi_text(char room[TEXT_ROOM], nvmlReturn_t code);
const char *smi_number(char room[TEXT_ROOM], nvmlReturn_t code, unsigned long long value, const char *unit);
bool smi_listed(const char *list, unsigned int number); /* NULL lists everything */

/* Calls a function for every GPU that -i names; what it returns last that is no success is the result. */
typedef nvmlReturn_t smi_each(unsigned int index, nvmlDevice_t device, const void *argument);
nvmlReturn_t smi_for_each(const struct smi_options *options, smi_each *function, const void *argument);

nvmlReturn_t smi_mig(int argc, char **argv, const struct smi_options *options, bool *understood);
nvmlReturn_t smi_mig_mode(const struct smi_options *options, unsigned int mode);
const char *smi_bus_id(nvmlDevice_t device, nvmlPciInfo_t *pci); /* as NVIDIA prints it; "?" where the GPU is lost */
nvmlReturn_t smi_setting(int argc, char **argv, const struct smi_options *options, bool *understood);
nvmlReturn_t smi_policy(int argc, char **argv, const struct smi_options *options, bool *understood);
void smi_list_mig(nvmlDevice_t device);
nvmlReturn_t smi_query(const struct smi_options *options, const char *fields);
nvmlReturn_t smi_query_apps(const struct smi_options *options, const char *fields);
nvmlReturn_t smi_summary(const struct smi_options *options);
nvmlReturn_t smi_xml(const struct smi_options *options);
nvmlReturn_t smi_long(const struct smi_options *options, const char *display); /* -q; display is what follows -d, or NULL */
bool smi_is_display(const char *display);
nvmlReturn_t smi_monitor(int argc, char **argv, const struct smi_options *options, bool *understood); /* dmon */
nvmlReturn_t smi_topology(void);
nvmlReturn_t smi_links(const struct smi_options *options); /* nvlink -s */
/* The value of a --query-gpu field without its unit; false for a field that is unknown. */
/* What the long listing knows under a name of its own; "N/A" where the board has it not. */
void smi_special(const char *what, nvmlDevice_t device, char room[TEXT_ROOM]);
bool smi_other_field(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit);
bool smi_field(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit);

#endif
