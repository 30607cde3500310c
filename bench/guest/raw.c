/* The other side of the raw copies: PID 1 of a VM that does nothing but move bytes over vsock port 49983 (the
 * same way in as envd's), without HTTP, JSON or files. A connection sends 'S' or 'R' and a length (u64, host
 * order): 'S' = send that many bytes to me, 'R' = I send that many, then you answer one byte. */
#include <stdint.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

static char block[256 * 1024];

static void serve(int fd)
{
    char op;
    uint64_t left;
    while (recv(fd, &op, 1, MSG_WAITALL) == 1 && recv(fd, &left, sizeof(left), MSG_WAITALL) == sizeof(left)) {
        while (left) {
            size_t want = left < sizeof(block) ? left : sizeof(block);
            ssize_t n = op == 'S' ? send(fd, block, want, MSG_NOSIGNAL) : recv(fd, block, want, 0);
            if (n <= 0)
                return;
            left -= (uint64_t)n;
        }
        if (op == 'R' && send(fd, &op, 1, MSG_NOSIGNAL) != 1)
            return;
    }
}

int main(void)
{
    struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_port = 49983, .svm_cid = VMADDR_CID_ANY};
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0)
        return 1; /* the kernel panics, the bench says that the VM is gone */
    for (int c; (c = accept(fd, NULL, NULL)) >= 0; close(c))
        serve(c);
    return 1;
}
