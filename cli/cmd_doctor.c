/* `cube doctor`: every check of this machine with its fix. */
#include "cli/checks.h"
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cmd_doctor(int argc, char **argv)
{
    struct settings s;
    settings_load(&s);
    for (int i = 1; i < argc; i++) {
        if (settings_option(&s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--kind") == 0)
            return puts(checks_kvm_kind()) < 0;
        printf("NAME\n    cube doctor - what this machine lacks, with the fix\n\nSYNOPSIS\n    cube doctor "
               "[--state DIR] [--port-base N] [--kind]\n\nOPTIONS\n    --kind   print only the kind of KVM: "
               "pvm, hardware or none\n\nThe last check boots $CUBE_GUEST_KERNEL with $CUBE_GUEST_TOOLS and "
               "runs "
               "a probe in it.\n\n"
               "EXIT STATUS\n    0 ready, 1 something forbids running\n");
        return strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
    static const char *const marks[] = {"ok", "warn", "BAD"};
    struct check_result r[CHECKS_MAX];
    int n = checks_run(&s, r), bad = 0;
    r[n++] = checks_selftest(getenv("CUBE_GUEST_KERNEL"), getenv("CUBE_GUEST_TOOLS"));
    for (int i = 0; i < n; i++) {
        printf("  %-5s %-10s %s\n", marks[r[i].level], r[i].name, r[i].finding);
        if (r[i].fix[0])
            printf("        %-10s fix: %s\n", "", r[i].fix);
        bad += r[i].level == CHECK_BAD;
    }
    return bad ? 1 : 0;
}
