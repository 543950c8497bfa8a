/* What the node's programs share (nvidia-smi, nvidia-cuda-mps-control); each has the core linked in and is static. */
#ifndef GPUDRA_MOCK_PROGRAMS_H
#define GPUDRA_MOCK_PROGRAMS_H

/* Points the core at the node that this program stands in, where GPUDRA_MOCK_NODE does not name one. */
void program_find_node(void);

#endif
