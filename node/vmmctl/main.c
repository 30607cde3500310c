/* cube-vm: `cube vm run` as a program of its own. */
#include "node/vmmctl/run.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("cube-vm " CUBE_VERSION);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "run"))
        return vm_run_command(argc - 1, argv + 1);
    return vm_run_command(argc, argv);
}
