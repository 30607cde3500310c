/* agent: PID 1 of a test guest. It mounts the root disk, binds the tools disk into it as /tools, and runs
 * shell commands that come over vsock port 1, each connection one command. It is no part of the product: it
 * keeps kernel tests independent of cube-init.
 *
 * Request: u32 length, command. Answer: frames {u8 type, u32 length, bytes}; type 1 is output (stdout and
 * stderr), type 2 the exit status as i32, the last frame. "@ping" is answered without starting a program,
 * "@reset" ends the machine. All numbers are little-endian. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

enum { PORT = 1, COMMAND_MAX = 1 << 20 };

static void mount_at(const char *what, const char *where, const char *type, unsigned long flags,
                     const char *data)
{
    mkdir(where, 0755);
    if (mount(what, where, type, flags, data) < 0)
        fprintf(stderr, "agent: mount %s on %s: %s\n", what, where, strerror(errno));
}

static void mount_all(void)
{
    mount_at("devtmpfs", "/dev", "devtmpfs", 0, "");
    mount_at("/dev/vda", "/mnt", "ext4", 0, "");
    mount_at("proc", "/mnt/proc", "proc", 0, "");
    mount_at("sysfs", "/mnt/sys", "sysfs", 0, "");
    mount_at("devtmpfs", "/mnt/dev", "devtmpfs", 0, "");
    mount_at("devpts", "/mnt/dev/pts", "devpts", 0, "mode=620,ptmxmode=666");
    mount_at("tmpfs", "/mnt/dev/shm", "tmpfs", 0, "mode=1777");
    mount_at("tmpfs", "/mnt/run", "tmpfs", 0, "mode=755");
    mount_at("tmpfs", "/mnt/tmp", "tmpfs", 0, "mode=1777");
    mount_at("cgroup2", "/mnt/sys/fs/cgroup", "cgroup2", 0, "");
    mount_at("/", "/mnt/tools", NULL, MS_BIND, "");
    if (symlink("/proc/self/fd", "/mnt/dev/fd") < 0 && errno != EEXIST)
        perror("agent: /dev/fd");
    /* Move instead of only chroot: user namespaces are refused to a process that is chrooted. */
    if (chdir("/mnt") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        perror("agent: root");
}

static void loopback_up(void)
{
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};

    if (s < 0 || ioctl(s, SIOCSIFFLAGS, &ifr) < 0)
        perror("agent: lo");
    if (s >= 0)
        close(s);
}

static bool read_all(int fd, void *buf, size_t n)
{
    for (char *p = buf; n;) {
        ssize_t r = read(fd, p, n);
        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

static bool send_frame(int fd, uint8_t type, const void *data, uint32_t n)
{
    char head[5] = {(char)type};

    memcpy(head + 1, &n, 4);
    if (send(fd, head, 5, MSG_MORE | MSG_NOSIGNAL) != 5)
        return false;
    for (const char *p = data; n;) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        p += w;
        n -= (uint32_t)w;
    }
    return true;
}

static void run_command(const char *command, int out)
{
    int null = open("/dev/null", O_RDWR);

    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    setsid();
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/bash", "bash", "-c", command, NULL);
    execl("/bin/sh", "sh", "-c", command, NULL); /* a root disk with nothing but busybox */
    _exit(127);
}

static void serve(int conn)
{
    uint32_t n;
    char *command;
    int out[2], status = 0;
    static char buf[65536];

    if (!read_all(conn, &n, 4) || n > COMMAND_MAX || !(command = calloc(1, n + 1)) ||
        !read_all(conn, command, n))
        _exit(1);
    if (!strcmp(command, "@ping")) {
        send_frame(conn, 2, &(int32_t){0}, 4);
        _exit(0);
    }
    if (!strcmp(command, "@reset")) {
        sync();
        reboot(RB_AUTOBOOT);
    }
    if (pipe2(out, O_CLOEXEC) < 0)
        _exit(1);
    pid_t pid = fork();
    if (pid == 0)
        run_command(command, out[1]);
    close(out[1]);
    for (;;) {
        ssize_t r = read(out[0], buf, sizeof(buf));
        if (r <= 0 || !send_frame(conn, 1, buf, (uint32_t)r))
            break;
    }
    waitpid(pid, &status, 0);
    int32_t code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    send_frame(conn, 2, &code, 4);
    _exit(0);
}

int main(void)
{
    setenv("PATH", "/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("HOME", "/root", 1);
    setenv("LANG", "C.UTF-8", 1);
    mount_all();
    loopback_up();

    struct sockaddr_vm addr = {.svm_family = AF_VSOCK, .svm_port = PORT, .svm_cid = VMADDR_CID_ANY};
    int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
        listen(listener, 64) < 0) {
        perror("agent: vsock");
        reboot(RB_AUTOBOOT);
    }
    fprintf(stderr, "agent: ready\n");
    for (;;) {
        int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (conn >= 0) {
            if (fork() == 0)
                serve(conn);
            close(conn);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}
