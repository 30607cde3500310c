/* `cube vm run`: the work is done by node/vmmctl. */
#include "cli/commands.h"
#include "node/vmmctl/run.h"

#include <stdio.h>
#include <string.h>

int cmd_vm(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        return vm_run_command(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return vm_run_command(2, (char *[]){"run", "--help", NULL});
    fprintf(stderr,
            "usage: cube vm run --kernel VMLINUX --root IMAGE [OPTION]... (see `cube vm run --help`)\n");
    return 2;
}
