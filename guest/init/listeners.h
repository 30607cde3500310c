/* The listening sockets of cube-envd, which outlive it. */
#pragma once

#include "lib/base/err.h"

#define LISTENERS_MAX 3

/** Opens them; returns how many there are, or -1 with an error. */
int listeners_open(int out[LISTENERS_MAX], struct err *e);
