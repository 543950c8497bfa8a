/* What the parts of the mock share: the mapped node, the prologue of every call, and small helpers for getters. */
#ifndef GPUDRA_MOCK_H
#define GPUDRA_MOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "functions.h"
#include "node_layout.h"

#define MOCK_EXPORT __attribute__((visibility("default")))
#define MOCK_WEAK __attribute__((weak, noinline))

enum mock_kind { MOCK_ANY_TIME, MOCK_INITIALISED, MOCK_DEVICE };

/* state.c */
nvmlReturn_t mock_enter(const char *function, enum mock_kind kind, nvmlDevice_t device);
nvmlReturn_t mock_reach(const char *function, nvmlDevice_t found); /* a lookup that the prologue let pass found this GPU */
nvmlReturn_t mock_open(const char *function);
nvmlReturn_t mock_close(void);
const struct mock_node *mock_node(void);
unsigned int mock_count(void);                            /* visible GPUs */
nvmlDevice_t mock_handle(unsigned int index);             /* NULL beyond the last visible one */
const struct mock_gpu *mock_gpu(nvmlDevice_t device);     /* NULL for a handle that is none */
bool mock_index(nvmlDevice_t device, unsigned int *index);
int mock_pair(size_t matrix_offset, nvmlDevice_t a, nvmlDevice_t b);
bool mock_lost(const struct mock_gpu *gpu);

/* Copies a text the way NVML does: INSUFFICIENT_SIZE when the buffer cannot hold it and its NUL. */
nvmlReturn_t mock_text(const struct mock_text *text, char *out, unsigned int length);

/* identity.c */
void mock_pci_info(const struct mock_gpu *gpu, nvmlPciInfo_t *pci);

/* A getter of one number: *out = number, NOT_SUPPORTED for -1. */
#define MOCK_GIVE(out, number)                                   \
    do {                                                         \
        const int64_t mock_value = (number);                     \
        if ((out) == NULL)                                       \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
        if (mock_value < 0)                                      \
            return NVML_ERROR_NOT_SUPPORTED;                     \
        *(out) = (__typeof__(*(out)))mock_value;                 \
        return NVML_SUCCESS;                                     \
    } while (0)

#define MOCK_VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((number) << 24U)))

#endif
