/* The few lines that every program of the kernel tests shares. A program prints what went wrong and ends with
 * 1; with 77 when the machine lacks what it tests. */
#ifndef KERNEL_TESTS_CHECK_H
#define KERNEL_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

enum { SKIPPED = 77 };

#endif
