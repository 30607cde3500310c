/* File system identity. Invariant: raw system calls, because glibc's wrappers would change every thread; a
 * non-zero fsuid takes the file capabilities of root away from this thread until fsid_leave. */
#include "guest/envd/fsid.h"

#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

bool fsid_enter(const struct user *u)
{
    if (geteuid() != 0 || u->uid == 0)
        return false;
    syscall(SYS_setgroups, (size_t)u->n_groups, u->groups);
    syscall(SYS_setfsgid, u->gid);
    syscall(SYS_setfsuid, u->uid);
    return true;
}

void fsid_leave(void)
{
    syscall(SYS_setfsuid, 0);
    syscall(SYS_setfsgid, getegid());
    syscall(SYS_setgroups, (size_t)0, NULL);
}
