/* The envd version that is reported (contracts/e2b.md §2.6): the newest whose features are all served. */
#pragma once

#define ENVD_VERSION "0.6.13"
