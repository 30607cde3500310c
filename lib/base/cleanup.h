/* Scope-bound ownership: a variable marked with one of these releases what it holds when it goes out of
 * scope. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void cleanup_fclose(FILE **f)
{
    if (*f)
        fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
    if (*d)
        closedir(*d);
}

#define _cleanup_free_ __attribute__((cleanup(cleanup_free)))
#define _cleanup_close_ __attribute__((cleanup(cleanup_close)))
#define _cleanup_fclose_ __attribute__((cleanup(cleanup_fclose)))
#define _cleanup_closedir_ __attribute__((cleanup(cleanup_closedir)))

/** Hands ownership of a descriptor to the caller and leaves -1 behind. */
static inline int fd_steal(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

/** Hands ownership of a pointer to the caller and leaves NULL behind. */
#define ptr_steal(p)                                                                                         \
    ({                                                                                                       \
        __typeof__(p) _v = (p);                                                                              \
        (p) = NULL;                                                                                          \
        _v;                                                                                                  \
    })
