/* One reading of a GPU for nvidia-smi -q, as XML or as text. */
#ifndef GPUDRA_MOCK_SMI_TREE_H
#define GPUDRA_MOCK_SMI_TREE_H

#include "smi.h"

/* Depth 1 is about the node; the GPU itself is a group there, and what is in it begins at depth 2. */
struct smi_style {
    void (*gpu)(const char *id);
    void (*gpu_end)(void);
    void (*open)(unsigned int depth, const char *name);
    void (*close)(unsigned int depth, const char *name);
    void (*leaf)(unsigned int depth, const char *name, const char *value);
};

/* What the node says of itself, then every GPU that -i names. */
nvmlReturn_t smi_tree(const struct smi_options *options, const struct smi_style *style);

#endif
