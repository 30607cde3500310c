/* Worker threads for what may block on a disk: the loop hands a job over and gets it back when it is done. */
#pragma once

#include <stddef.h>

/** One job. `run` is called on a worker thread, `done` on the loop's thread afterwards. Whatever the job
 * points to belongs to the worker in between. */
struct job {
    void (*run)(struct job *job);
    void (*done)(struct job *job);
    struct job *next;
};

/** Puts the completion descriptor into the loop; returns 0 or -1 with errno. */
int jobs_open(void);

/** JOB_BUFFER bytes for the job that runs on this thread: what is in them is lost when `run` returns, so that
 * slow clients hold no memory. NULL = out of memory. */
#define JOB_BUFFER ((size_t)256 * 1024)
char *job_buffer(void);

/** Queues a job; threads start on demand and end when idle. When no thread can be had, the job runs at once.
 */
void jobs_submit(struct job *job);
