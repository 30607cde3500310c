/* Builds the common part of Boot and Restore from paths. */
#include "lib/base/cleanup.h"
#include "node/vmmctl/client.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

unsigned vmm_wiring_add(struct vmm_wiring *w, int fd)
{
    w->fds[w->nfds] = fd;
    return w->nfds++;
}

void vmm_wiring_close(struct vmm_wiring *w)
{
    for (unsigned i = 0; i < w->nfds; i++)
        close(w->fds[i]);
    w->nfds = 0;
}

static int disk_open(struct vmm_wiring *w, unsigned i, const struct vmm_disk_spec *s, struct err *e)
{
    Cube__Vmm__V1__Disk *d = &w->disk[i];

    cube__vmm__v1__disk__init(d);
    w->disks[i] = d;
    int base = open(s->base, O_RDONLY | O_CLOEXEC);
    if (base < 0)
        return err_sys(e, ERR_NOT_FOUND, "open %s", s->base);
    d->base_fd = vmm_wiring_add(w, base);
    d->read_only = !s->layer;
    d->size_bytes = s->size_bytes;
    d->serial = i ? "tools" : "root";
    if (s->layer) {
        int layer = open(s->layer, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (layer < 0)
            return err_sys(e, ERR_NOT_FOUND, "open %s", s->layer);
        d->layer_fd = vmm_wiring_add(w, layer);
    }
    return 0;
}

int vmm_wiring_open(struct vmm_wiring *w, const struct vmm_disk_spec *disks, unsigned ndisks, int tap_fd,
                    int console_fd, const char *ctl_path, const char *in_path, unsigned memory_mib,
                    unsigned vcpus, struct err *e)
{
    static const uint8_t mac[6] = {0x02, 0xcb, 0, 0, 0, 0x21};

    memset(w, 0, sizeof *w);
    cube__vmm__v1__wiring__init(&w->msg);
    cube__vmm__v1__net__init(&w->net);
    for (unsigned i = 0; i < ndisks; i++)
        if (disk_open(w, i, &disks[i], e) < 0)
            return -1;
    w->msg.disks = w->disks;
    w->msg.n_disks = ndisks;
    if (tap_fd >= 0) {
        w->net.present = true;
        w->net.tap_fd = vmm_wiring_add(w, tap_fd);
        w->net.mac = (ProtobufCBinaryData){6, (uint8_t *)mac};
        w->msg.net = &w->net;
    }
    w->ctl_listener = vmm_listen(ctl_path, e);
    w->in_listener = w->ctl_listener < 0 ? -1 : vmm_listen(in_path, e);
    if (w->in_listener < 0)
        return -1;
    w->msg.ctl_fd = vmm_wiring_add(w, w->ctl_listener);
    w->msg.in_fd = vmm_wiring_add(w, w->in_listener);
    w->msg.console_fd = vmm_wiring_add(w, fcntl(console_fd, F_DUPFD_CLOEXEC, 3));
    w->msg.sandbox_id = "dev";
    w->msg.gen = 1;
    w->msg.memory_mib = memory_mib;
    w->msg.vcpus = vcpus;
    return 0;
}
