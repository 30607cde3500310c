/* Moved to the daemons' library; kept so that the includes of this directory read the same. */
#pragma once
#include "lib/net/fiber.h"
