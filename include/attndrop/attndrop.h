// SPDX-License-Identifier: Apache-2.0
// Everything a user of the library includes.
#pragma once

#include "attndrop/analytics.h"  // IWYU pragma: export
#include "attndrop/attention.h"  // IWYU pragma: export
#include "attndrop/compat.h"     // IWYU pragma: export
#include "attndrop/dropout.h"    // IWYU pragma: export
#include "attndrop/dtype.h"      // IWYU pragma: export
#include "attndrop/executor.h"   // IWYU pragma: export
#include "attndrop/plan.h"       // IWYU pragma: export
#include "attndrop/problem.h"    // IWYU pragma: export
#include "attndrop/schemes.h"    // IWYU pragma: export
#include "attndrop/scratch.h"    // IWYU pragma: export
#include "attndrop/status.h"     // IWYU pragma: export
#include "attndrop/strided.h"    // IWYU pragma: export
#include "attndrop/version.h"    // IWYU pragma: export
