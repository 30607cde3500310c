/* Says on standard error where the process was when a signal ended it, as lines of the log. */
#pragma once

#include <signal.h>

/**
 * From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write two lines of the log before they end the
 * process as they would have without: signal, address and registers; the stack as FILE+OFFSET, for `addr2line
 * -fe FILE OFFSET`. When the environment's CUBE_CRASH_FILE names a file that exists, they are appended to it,
 * too (the tests look there). `prog` is kept. The calling thread gets a stack for the handler, so that an
 * overflow is told as well; other threads use their own. Does nothing under a sanitizer, which reports by
 * itself.
 */
void crash_init(const char *prog);

/** Takes these signals out of a set that a thread is going to block: blocked, they would end the process
 * unsaid. */
void crash_unblock(sigset_t *set);
