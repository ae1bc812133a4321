// SPDX-License-Identifier: Apache-2.0
// Marks what a shared library shows; everything else stays hidden.
#pragma once

#if defined(ATTNDROP_SHARED) && defined(_WIN32)
#if defined(ATTNDROP_BUILDING)
#define ATTNDROP_EXPORT __declspec(dllexport)
#else
#define ATTNDROP_EXPORT __declspec(dllimport)
#endif
#elif defined(ATTNDROP_SHARED)
#define ATTNDROP_EXPORT __attribute__((visibility("default")))
#else
#define ATTNDROP_EXPORT
#endif
