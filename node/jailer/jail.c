/* The jail: own user, mount, pid, net, ipc and uts namespaces, an empty root, no capabilities, no new
 * privileges, resource limits. What the VMM gets are three descriptors: its control socket, /dev/kvm and,
 * until its guest runs, /proc. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define OPEN_FILES 2048 /* two per vsock connection at most, and what the devices need */

/* Runs in the child: no way to report but a line on the log and the exit status. */
static void die(const char *what)
{
    dprintf(STDERR_FILENO, "jail: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void enter_empty_root(const char *dir)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        die("make mounts private");
    if (mount(dir, dir, NULL, MS_BIND, NULL) < 0)
        die("bind the empty root");
    if (mount(NULL, dir, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        die("make the root read-only");
    if (chdir(dir) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        die("change the root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        die("detach the old root");
}

static void set_limits(const struct jail *j)
{
    const struct {
        int what;
        rlim_t value;
    } r[] = {{RLIMIT_NOFILE, OPEN_FILES},
             {RLIMIT_CORE, 0},
             {RLIMIT_MEMLOCK, 0},
             {RLIMIT_MSGQUEUE, 0},
             {RLIMIT_SIGPENDING, 64},
             {RLIMIT_FSIZE, j->limits.file_bytes ? j->limits.file_bytes : RLIM_INFINITY}};

    for (unsigned i = 0; i < sizeof r / sizeof r[0]; i++)
        if (setrlimit(r[i].what, &(struct rlimit){r[i].value, r[i].value}) < 0)
            die("set resource limits");
}

static void drop_privileges(uid_t uid)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};

    for (int c = 0; c <= 63; c++)
        if (prctl(PR_CAPBSET_READ, c, 0, 0, 0) > 0 && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0)
            die("drop the bounding set");
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        die("change user");
    if (syscall(SYS_capset, &h, none) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        die("drop capabilities");
}

struct child_fds {
    int listener, kvm, proc, vmm, log, ready;
};

/* cube-vmm gets 3, 4 and 5; its program is open until it runs. */
#define VMM_PROGRAM 6

static void place(const int *from, unsigned n)
{
    /* First out of the way, then to 3 and up, so that no move overwrites a source, whatever its number. */
    int high[8];
    for (unsigned i = 0; i < n; i++)
        if ((high[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 64)) < 0)
            die("place descriptors");
    for (unsigned i = 0; i < n; i++)
        if (dup3(high[i], 3 + (int)i, i == VMM_PROGRAM - 3 ? O_CLOEXEC : 0) < 0)
            die("place descriptors");
}

static void child_main(const struct jail *j, const struct child_fds *f)
{
    char mem[16], cpus[16], go;
    char *argv[] = {"cube-vmm", "--memory-mib", mem, "--vcpus", cpus, NULL};
    char *envp[] = {"TZ=UTC", NULL};
    char dir[200];
    sigset_t none;

    if (read(f->ready, &go, 1) != 1) /* the parent is gone, or could not set us up */
        _exit(125);
    snprintf(mem, sizeof mem, "%u", j->memory_mib);
    snprintf(cpus, sizeof cpus, "%u", j->vcpus);
    snprintf(dir, sizeof dir, "%s/jailer/empty", j->o->run_dir);
    dup2(f->log, STDERR_FILENO);
    place((int[]){f->listener, f->kvm, f->proc, f->vmm}, 4);
    int null = open("/dev/null", O_RDWR);
    if (null < 0)
        die("open /dev/null");
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    close_range(VMM_PROGRAM + 1, ~0u, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    if (sethostname("vm", 2) < 0)
        die("set the host name");
    enter_empty_root(dir);
    set_limits(j);
    drop_privileges((uid_t)j->o->vm_uid_base + j->slot);
    syscall(SYS_execveat, VMM_PROGRAM, "", argv, envp, AT_EMPTY_PATH);
    die("start cube-vmm");
}

static int write_map(pid_t pid, const char *file, unsigned id, struct err *e)
{
    char path[64], text[64];

    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    snprintf(text, sizeof text, "%u %u 1\n", id, id);
    return textfile_write(path, text) < 0 ? err_sys(e, ERR_INTERNAL, "write %s", path) : 0;
}

pid_t jail_start(const struct jail *j, int *pidfd, int *go, struct err *e)
{
    _cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int vmm = open(j->o->vmm, O_PATH | O_CLOEXEC);
    _cleanup_close_ int ready_r = -1, ready_w = -1;
    int pipe_fds[2];

    if (kvm < 0)
        return err_sys(e, ERR_UNSUPPORTED, "open /dev/kvm");
    if (proc < 0 || vmm < 0)
        return err_sys(e, ERR_INTERNAL, "open %s", proc < 0 ? "/proc" : j->o->vmm);
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(e, ERR_CAPACITY, "pipe");
    ready_r = pipe_fds[0];
    ready_w = pipe_fds[1];
    struct child_fds f = {j->listener, kvm, proc, vmm, j->log_fd, ready_r};
    struct clone_args a = {.flags = CLONE_PIDFD | CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                                    CLONE_NEWIPC | CLONE_NEWUTS,
                           .pidfd = (uintptr_t)pidfd,
                           .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &a, sizeof a);
    if (pid < 0)
        return err_sys(e, ERR_CAPACITY, "make the namespaces of %s", j->name);
    if (pid == 0) {
        close(ready_w);
        child_main(j, &f);
    }
    unsigned id = (unsigned)j->o->vm_uid_base + j->slot;
    if (cgroup_enter(j->name, pid, e) < 0 || write_map(pid, "gid_map", id, e) < 0 ||
        write_map(pid, "uid_map", id, e) < 0) {
        close(fd_steal(&ready_w));
        waitpid(pid, NULL, 0);
        close(*pidfd);
        return -1;
    }
    *go = fd_steal(&ready_w);
    return pid;
}
