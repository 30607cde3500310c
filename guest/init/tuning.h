/* Kernel settings of the guest. */
#pragma once

/** Writes /proc/sys values; one that this kernel lacks is skipped. */
void tuning_apply(void);
