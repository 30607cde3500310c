/* `cube env`: what an SDK needs, as shell exports. */
#include "cli/commands.h"
#include "cli/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cmd_env(int argc, char **argv)
{
    struct settings s;
    /* This cluster's values, whatever the environment says of another. */
    unsetenv("E2B_API_KEY");
    unsetenv("E2B_API_URL");
    unsetenv("E2B_SANDBOX_URL");
    settings_load(&s);
    for (int i = 1; i < argc; i++) {
        if (settings_option(&s, argc, argv, &i))
            continue;
        printf("NAME\n    cube env - print the SDK's environment\n\nSYNOPSIS\n    eval \"$(cube env [--state "
               "DIR])\"\n");
        return strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
    struct err e = {0};
    if (settings_key(&s, &e) < 0) {
        fprintf(stderr, "cube env: %s\n  %s\n", e.msg, e.remedy);
        return 1;
    }
    printf("export E2B_API_KEY=%s\nexport E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\n", s.api_key, s.api_url,
           s.sandbox_url);
    return 0;
}
