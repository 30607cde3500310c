/* Worker threads for what may block on a disk: the loop hands a job over and gets it back when it is done. */
#pragma once

/** One job. `run` is called on a worker thread, `done` on the loop's thread afterwards. Whatever the job
 * points to belongs to the worker in between. */
struct job {
    void (*run)(struct job *job);
    void (*done)(struct job *job);
    struct job *next;
};

/** Puts the completion descriptor into the loop; returns 0 or -1 with errno. */
int jobs_open(void);

/** Queues a job; threads start on demand and end when idle. When no thread can be had, the job runs at once.
 */
void jobs_submit(struct job *job);
