/* The `cube` command: finds the subcommand and hands over. */
#include "cli/commands.h"
#include "cli/http.h"
#include "lib/base/log.h"

#include <stdio.h>
#include <string.h>

static int help(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"up", cmd_up, "start everything on this machine and check it"},
    {"down", cmd_down, "stop everything and leave nothing behind"},
    {"status", cmd_status, "which daemons run"},
    {"env", cmd_env, "print the SDK's environment, for eval"},
    {"doctor", cmd_doctor, "what this machine lacks, with the fix"},
#include "cli/commands.inc"
    {"help", help, "this page, or the page of a command"},
};

#define COMMANDS (sizeof commands / sizeof *commands)

static int help(int argc, char **argv)
{
    if (argc > 1)
        for (size_t i = 0; i < COMMANDS; i++)
            if (strcmp(commands[i].name, argv[1]) == 0 && commands[i].run != help)
                return commands[i].run(2, (char *[]){argv[1], "--help", NULL});
    printf("NAME\n    cube - sandboxes for AI agents on your own machines\n\nSYNOPSIS\n    cube COMMAND "
           "[OPTION]...\n\n"
           "COMMANDS\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("    %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\nENVIRONMENT\n    CUBE_STATE_DIR, CUBE_RUN_DIR      where the cluster of this machine lives\n"
           "    E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL   another cluster\n\n`cube COMMAND --help` tells "
           "more.\n");
    return 0;
}

int main(int argc, char **argv)
{
    log_init("cube", LOG_INFO);
    http_init();
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return help(1, argv);
    if (strcmp(argv[1], "--version") == 0)
        return printf("cube %s\n", CUBE_VERSION) < 0;
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, argv[1]) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "cube: there is no command '%s'; `cube help` lists them\n", argv[1]);
    return 2;
}
