/* The init of a tools disk whose probe fails: what a host would show whose KVM lets user code too far. */
#include <stdio.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

int main(void)
{
    printf("cube-probe: FAILED: user code can read an MSR\n");
    fflush(stdout);
    tcdrain(STDOUT_FILENO);
    return reboot(RB_AUTOBOOT);
}
