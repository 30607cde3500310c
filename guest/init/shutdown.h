/* The end of the guest. */
#pragma once

#include <stdbool.h>

/** Asks user processes to end, kills what is left after two seconds, syncs, and resets the machine (the VMM
 * takes a reset for the end). Returns at once; the rest happens in the loop. */
void shutdown_begin(void);
